-- The parts that all steps share: the time, the names of keys, and text helpers.
--
-- All keys of an event are in one shard, and all keys of a shard begin with the same hash tag, KEYS[1]. This file and
-- the files beside it are joined to one script. ARGV contains the time ('' for the server's own), the retention in
-- seconds, the channel that wakes workers, '1' if the caller waits until the call's writes are durable, the caller's
-- format, the number of shards, the name of the field of BASE:m in which the caller is noted, and then for each step its
-- name, the number of its arguments and the arguments.
--
-- Keys of an event; BASE is the hash tag:
--   BASE:a:<key>  string: its record (records.lua)        expires, unless BASE:i or BASE:l exists
--   BASE:i:<key>  string: its body, while it is in the inbox
--   BASE:l:<key>  hash: its dead letter, or its kept delivery
--   BASE:c:<key>  string: until when its gap counts as accepted; expires then
--   BASE:hb:<key> hash: its delivery, kept although the event is handled; expires
-- Keys of a key lock: see key_locks.lua.
-- Keys of an endpoint:
--   BASE:q:<endpoint>  zset: its inbox, by due time
--   BASE:o:<endpoint>  zset: its inbox, by the time of enqueueing
--   BASE:n:<endpoint>  hash: the bytes in its inbox, and the time of the last fetch
--   BASE:x:<endpoint>  zset: its dead letters, by the time of burial; BASE:x has those of all endpoints
--   BASE:hi:<endpoint> zset: its handled events whose deliveries are kept, by the time of success; expires with the last
--   BASE:hn:<endpoint> string: the sum of the sizes of their bodies; expires with the last
--   BASE:hc:<endpoint> hash: the start of each handler's open batch of replays; expires after the retention
-- Keys of an endpoint in the first shard only:
--   BASE:p:<endpoint>  zset: its applications, by the time of their last registration
--   BASE:f:<endpoint>  zset: the spans in which types were ignored, by their end
--   BASE:g:<endpoint>  string: exists while an operator follows its activity
--   BASE:h:<endpoint>  list: the lines about its activity
--   BASE:j:<endpoint>  string: the number of all lines so far
--   BASE:hr:<endpoint> hash: the last batch of replays of each handler; it does not expire
-- Keys of the first shard only; a member is ENDPOINT:WORKER:
--   BASE:u             zset: the workers that report, by the time of their last report
--   BASE:d             hash: their reports
-- Keys of a shard:
--   BASE:m             hash: the number of the format, the number of shards, and for each version's newest format as
--                      'seen:<format>' when a process of it last called (stores/formats.py)
--   BASE:b             set: the keys of dead letters whose records could not be read
--   BASE:e             set: the endpoints with a non-empty inbox
--   BASE:v             zset: the live claims, by the end of their leases
--   BASE:w             zset: the workers, by the time of their last fetch
--   BASE:y             hash: the endpoint of each worker
--   BASE:he            set: the endpoints that keep handled events; expires with the last
--   BASE:r:<worker>    list: the number and token of its last fetch, and the fetched keys
--   BASE:s             string: a counter that orders members with equal scores
--   BASE:t             string: a write whose durability the caller can wait for
--
-- Each known event has one packed record. So a usual claim is one SET NX, a usual enqueue one GET and one MSET, and a
-- completion one SET GET. Each additional command would cost the server about as much again.
--
-- life/table.py defines the reply of each step and the next state of the event. A comment such as FREE.claim names the row
-- of its table that a line implements.
--
-- A step reads and checks before it writes, so that an error leaves no step half done.

local base, now, retention, channel = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end

-- codec.py defines MOST_FAILURES, INTERRUPTED, WORKER_SECONDS, SEEN_SECONDS and OLD_SECONDS before this file, with the
-- values of Python.

-- Compare the format before anything is read or written. A shard without one is new, or its server has lost all data.
do
  local about = redis.call('HMGET', base .. ':m', 'format', 'shards', ARGV[7])
  if not about[1] then
    redis.call('HSET', base .. ':m', 'format', ARGV[5], 'shards', ARGV[6])
  elseif about[1] ~= ARGV[5] or about[2] ~= ARGV[6] then
    return {'M', about[1], about[2] or ''}
  end
  local seen = tonumber(about[3] or nil)
  if not seen or seen > now or seen <= now - SEEN_SECONDS then
    -- `pcall`, since a server with a full memory refuses this write, but can do the steps.
    redis.pcall('HSET', base .. ':m', ARGV[7], string.format('%.17g', now))
  end
end

local ops = {}
local HELD, LOST = 'H', 'L'

-- Set by steps, used once at the end of the call.
local latest_end = nil
local set_aside_now = {}
local to_wake = {}

-- Lua's own conversion keeps only 14 digits of a time. The steps of a call often write the same times and expiries,
-- so the texts are cached.
local texts = {}
local function text(number)
  local known = texts[number]
  if not known then
    if number ~= number then return 'nan' end -- NaN cannot be an index of a table
    known = string.format('%.17g', number)
    texts[number] = known
  end
  return known
end

local expiries = {}
local function milliseconds(seconds)
  local known = expiries[seconds]
  if not known then
    if seconds ~= seconds then return '1' end
    -- A server refuses an expiry that does not fit into its integers.
    known = string.format('%.0f', math.max(1, math.min(math.ceil(seconds * 1000), 1e15)))
    expiries[seconds] = known
  end
  return known
end

local function lines(joined)
  local found = {}
  for line in string.gmatch(joined, '[^\n]+') do
    found[#found + 1] = line
  end
  return found
end

-- Merges two lists of handlers' names; each line of a list is one name as JSON.
local function union(known, added)
  if added == '' or known == added then return known end
  if known == '' then return added end
  local names, seen = {}, {}
  for _, text_of_names in ipairs({known, added}) do
    for _, name in ipairs(lines(text_of_names)) do
      if not seen[name] then
        seen[name] = true
        names[#names + 1] = name
      end
    end
  end
  return table.concat(names, '\n')
end

local function without(names, removed)
  if names == '' or removed == '' then return names end
  local rest, is_removed = {}, {}
  for _, name in ipairs(lines(removed)) do
    is_removed[name] = true
  end
  for _, name in ipairs(lines(names)) do
    if not is_removed[name] then rest[#rest + 1] = name end
  end
  return table.concat(rest, '\n')
end

-- Adds a failure to a history, which has one line for each failure: number, time, error as JSON. A failure of '' adds
-- nothing.
local function with_failure(history, number, at, failure)
  if failure == '' then return history end
  local failures = lines(history)
  failures[#failures + 1] = string.format('%d %s %s', number, text(at), failure)
  return table.concat(failures, '\n', math.max(1, #failures - MOST_FAILURES + 1))
end

-- The next number of the shard's counter, as 16 digits, which sort as text like the numbers. One INCRBY reserves enough
-- numbers for the call: a step needs at most one, and there are fewer steps than arguments.
local last_number
local function next_number()
  if not last_number then
    local name = base .. ':s'
    last_number = redis.call('INCRBY', name, #ARGV) - #ARGV
    redis.call('PEXPIRE', name, milliseconds(retention))
  end
  last_number = last_number + 1
  return string.format('%016d', last_number)
end

local function key_of(member)
  return string.sub(member, 18)
end

-- If its memory is full, the server refuses writes, except in a script that has deleted a key first. Steps call this so
-- that accepted events can be finished; only new events are refused.
local passes = false
local function pass_when_full()
  if not passes then redis.call('DEL', base .. ':t') end
  passes = true
end
