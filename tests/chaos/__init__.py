"""The examples' receivers under chaos, over each store and in both modes."""
