-- Sorted sets, and what is counted of an endpoint. What the steps of a call change is written once, at
-- its end or before it is read: a ZADD of many members costs less than one for each.

local LIVE = base .. ':v'
-- Lua's stack holds 8,000 values.
local MOST_WORDS = 4000

local unwritten = {}

-- `score` is a text; nil takes the member out.
local function place(index, member, score)
  local members = unwritten[index]
  if not members then
    members = {}
    unwritten[index] = members
  end
  members[member] = score or false
end

local function call_with_all(command, name, words)
  for first = 1, #words, MOST_WORDS do
    redis.call(command, name, unpack(words, first, math.min(first + MOST_WORDS - 1, #words)))
  end
end

local function write_index(index)
  local members = unwritten[index]
  if not members then return end
  local added, removed = {}, {}
  for member, score in pairs(members) do
    if score then
      added[#added + 1] = score
      added[#added + 1] = member
    else
      removed[#removed + 1] = member
    end
  end
  unwritten[index] = nil
  pass_when_full()
  call_with_all('ZREM', index, removed)
  call_with_all('ZADD', index, added)
end

local function read_index(command, index, ...)
  write_index(index)
  return redis.call(command, index, ...)
end

local function set_live(key, ends)
  place(LIVE, key, text(ends))
  latest_end = math.max(latest_end or ends, ends)
end

-- Of an endpoint: how many events are in its inbox, their bytes, and when it was last looked into.
-- Whoever adds or removes an event asks first.
local known_counts = {}

local function counts_of(endpoint)
  local counts = known_counts[endpoint]
  if not counts then
    local found = redis.call('HMGET', base .. ':n:' .. endpoint, 'bytes', 'seen')
    counts = {depth = redis.call('ZCARD', base .. ':q:' .. endpoint), bytes = tonumber(found[1] or 0),
      seen = tonumber(found[2]), is_listed = found[1], has_changed = false}
    known_counts[endpoint] = counts
  end
  return counts
end

local function count(endpoint, events, bytes)
  local counts = counts_of(endpoint)
  counts.depth, counts.bytes, counts.has_changed = counts.depth + events, counts.bytes + bytes, true
end

local function write_counts(endpoint, counts)
  if not counts.has_changed then return end
  counts.has_changed = false
  pass_when_full()
  if counts.depth == 0 then
    counts.bytes, counts.seen, counts.is_listed = 0, nil, nil
    redis.call('DEL', base .. ':n:' .. endpoint)
    redis.call('SREM', base .. ':e', endpoint)
    return
  end
  redis.call('HSET', base .. ':n:' .. endpoint, 'bytes', text(counts.bytes), 'seen', text(counts.seen or now))
  if not counts.is_listed then redis.call('SADD', base .. ':e', endpoint) end
  counts.is_listed = true
end

local function write_all()
  for index in pairs(unwritten) do write_index(index) end
  for endpoint, counts in pairs(known_counts) do write_counts(endpoint, counts) end
end
