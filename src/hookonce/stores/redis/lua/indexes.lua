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
    found[#found + 1] = row_of(key_of(members[n]), members[n])
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

-- The deliveries of handled events. A member of an endpoint's index is the delivery's rank and its key. The rank is a
-- number, the size of the body, and the time at which the delivery expires: the server may have deleted the delivery.
local MOST_DELETED = 500
local handled_changes = {}

local function handled_name(key)
  return base .. ':hb:' .. key
end

local function handled_index(endpoint)
  return base .. ':hi:' .. endpoint
end

local function cut_offs(endpoint)
  return base .. ':hc:' .. endpoint
end

local function handled_bytes(endpoint)
  return base .. ':hn:' .. endpoint
end

-- The changes of this call to an endpoint's kept deliveries: how many were added, the change of their bytes, the limit
-- of bytes, how long the deliveries are kept, and the latest start of an open batch of replays.
local function handled_changes_of(endpoint)
  local changes = handled_changes[endpoint]
  if not changes then
    changes = {added = 0, bytes = 0, most = nil, seconds = 0, cut_off = 0}
    for _, start in ipairs(redis.call('HVALS', cut_offs(endpoint))) do
      changes.cut_off = math.max(changes.cut_off, tonumber(start) or 0)
    end
    handled_changes[endpoint] = changes
  end
  return changes
end

-- Deletes at most `at_most` of an endpoint's oldest deliveries: the expired ones, and others until `excess` bytes are
-- freed. Returns how many were deleted.
local function forget_oldest_handled(endpoint, at_most, excess)
  local index, freed, deleted = handled_index(endpoint), 0, 0
  for _, member in ipairs(read_index('ZRANGE', index, 0, at_most - 1)) do
    local rank, size, expires, key = string.match(member, '^(%d+:(%d+):([^:]+)):(.*)$')
    if rank and (tonumber(expires) or now) > now and freed >= (excess or 0) then break end
    place(index, member, nil)
    deleted = deleted + 1
    if rank then
      freed = freed + tonumber(size)
      if redis.call('HGET', handled_name(key), 'rank') == rank then redis.call('DEL', handled_name(key)) end
    end
  end
  if freed > 0 then redis.call('DECRBY', handled_bytes(endpoint), string.format('%d', freed)) end
  return deleted
end

local function write_handled(endpoint, changes)
  handled_changes[endpoint] = nil
  local bytes = redis.call('INCRBY', handled_bytes(endpoint), string.format('%d', changes.bytes))
  -- Twice as many as were added are enough to keep up.
  local excess, at_most = 0, 2 * changes.added
  if changes.most and bytes > changes.most then excess, at_most = bytes - changes.most, MOST_DELETED end
  forget_oldest_handled(endpoint, at_most, excess)
  write_index(handled_index(endpoint))
  redis.call('SADD', base .. ':he', endpoint)
  local wanted = milliseconds(changes.seconds)
  for _, name in ipairs({handled_index(endpoint), handled_bytes(endpoint), base .. ':he'}) do
    if redis.call('PTTL', name) < tonumber(wanted) then redis.call('PEXPIRE', name, wanted) end
  end
end

local function write_all()
  for endpoint, changes in pairs(handled_changes) do write_handled(endpoint, changes) end
  for index in pairs(unwritten) do write_index(index) end
  for endpoint, counts in pairs(known_counts) do write_counts(endpoint, counts) end
end
