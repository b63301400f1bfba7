-- Sorted sets, and the counts of each endpoint. The changes of all steps of a call are collected, and written at the end
-- of the call or before a step reads them: one ZADD of many members is faster than one ZADD for each.

local LIVE = base .. ':v'
-- Lua's stack holds 8,000 values.
local MOST_WORDS = 4000

local unwritten = {}

-- Sets the score of a member, as text; nil removes the member.
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

-- Whether a text sorts after another, byte by byte. Lua's own comparison depends on the locale.
local function is_behind(one, other)
  for n = 1, math.max(#one, #other) do
    local byte, other_byte = string.byte(one, n) or -1, string.byte(other, n) or -1
    if byte ~= other_byte then return byte > other_byte end
  end
  return false
end

-- The rank from which a listing continues: the number of members up to the given score and member. The member may have
-- been removed since it was listed.
local function rank_behind(index, score, member)
  if tonumber(read_index('ZSCORE', index, member) or nil) == tonumber(score) then
    return redis.call('ZRANK', index, member) + 1
  end
  local low = redis.call('ZCOUNT', index, '-inf', '(' .. score)
  local high = redis.call('ZCOUNT', index, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_behind(redis.call('ZRANGE', index, middle, middle)[1], member) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

-- One page of a listing, after a score and a member ('' for the start). It reads a limited number of members, so that no
-- call is long. Returns the score and member of the last member read ('-' as score at the end of the index), and the rows
-- that pass the filters.
local function page_of(index, first_rank, most, score, member, limit, row_of)
  local rank = score == '' and first_rank or rank_behind(index, score, member)
  local members = read_index('ZRANGE', index, rank, rank + most - 1, 'WITHSCORES')
  local found = {}
  for n = 1, #members, 2 do
    found[#found + 1] = row_of(key_of(members[n]))
    if #found == limit then return {members[n + 1], members[n], found} end
  end
  if #members < 2 * most then return {'-', '', found} end
  return {members[#members], members[#members - 1], found}
end

-- The filters of a listing, from 5 arguments: type or '', event id or '', handler's name as JSON or '', since or '',
-- reason or ''.
local function filters_of(arg, first)
  return {
    type = arg[first], event_id = arg[first + 1], outstanding = arg[first + 2],
    since = tonumber(arg[first + 3]) or -math.huge, reason = arg[first + 4],
  }
end

-- How many members one page reads: fewer if it must read each record, more if the key alone answers the filter.
local function page_length_for(wanted)
  return wanted.event_id == '' and 200 or 2000
end

local function is_of_event(key, event_id)
  return event_id == '' or string.sub(key, string.find(key, ':', 1, true) + 1) == event_id
end

local function is_outstanding(outstanding, name)
  return name == '' or string.find('\n' .. outstanding .. '\n', '\n' .. name .. '\n', 1, true) ~= nil
end

local function set_live(key, ends)
  place(LIVE, key, text(ends))
  latest_end = math.max(latest_end or ends, ends)
end

-- The counts of an endpoint: the events in its inbox, their bytes, and the time of the last fetch. A step must call this
-- before it adds or removes an event.
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
