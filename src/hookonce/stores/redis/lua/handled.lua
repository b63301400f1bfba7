-- The deliveries of handled events; see stores/handled.py and, for the changes of an endpoint's index, indexes.lua.

-- Arguments: key, the 5 parts of a delivery, finished, how many seconds to keep it, most bytes or ''.
function ops.complete_and_keep(arg)
  local key, endpoint, size = arg[1], arg[2], #arg[6]
  local seconds, most = tonumber(arg[8]), tonumber(arg[9])
  local name = handled_name(key)
  local known = redis.call('HMGET', name, 'rank', 'size', 'expires')
  local known_size, known_expires = tonumber(known[2] or nil), tonumber(known[3] or nil)
  finish(key, '')
  if most and size > most or known_expires and known_expires > now then return HELD end
  local changes = handled_changes_of(endpoint)
  if known[1] and known_size then
    place(handled_index(endpoint), known[1] .. ':' .. key, nil)
    changes.bytes = changes.bytes - known_size
  end
  local expires = text(now + seconds)
  local rank = next_number() .. ':' .. size .. ':' .. expires
  local at = text(math.max(now, changes.cut_off))
  redis.call('HSET', name, 'rank', rank, 'endpoint', endpoint, 'event_id', arg[3], 'type', arg[4], 'received', arg[5],
    'body', arg[6], 'finished', arg[7], 'at', at, 'size', size, 'expires', expires)
  redis.call('PEXPIRE', name, milliseconds(seconds))
  place(handled_index(endpoint), rank .. ':' .. key, at)
  changes.added, changes.bytes, changes.most = changes.added + 1, changes.bytes + size, most
  changes.seconds = math.max(changes.seconds, seconds)
  return HELD
end

-- A row of a listing; nil if the delivery is gone. A member of an index that has another rank belongs to an earlier
-- delivery of the event.
local function handled_reply(key, rank, with_body)
  local name = handled_name(key)
  local found = redis.call('HMGET', name, 'endpoint', 'event_id', 'type', 'received', 'finished', 'at', 'expires', 'rank')
  if not found[1] or (tonumber(found[7] or nil) or now) <= now or rank and rank ~= found[8] then return nil end
  local body = with_body and redis.call('HGET', name, 'body') or ''
  return {found[1], found[2], found[3], found[4], body, found[5], found[7], '', '', found[6], found[8]}
end

-- Arguments: key.
function ops.handled_event(arg)
  return handled_reply(arg[1], nil, true) or 'N'
end

-- Arguments: endpoint, 5 filters (filters_of), the time before which events were handled or '', score, member, limit.
-- Reply: the result of page_of.
function ops.handled_events(arg)
  write_all()
  local index, wanted, before = handled_index(arg[1]), filters_of(arg, 2), tonumber(arg[7]) or math.huge
  local first = redis.call('ZCOUNT', index, '-inf', '(' .. text(wanted.since))
  return page_of(index, first, page_length_for(wanted), arg[8], arg[9], tonumber(arg[10]), function(_, member)
    local rank, key = string.match(member, '^(%d+:%d+:[^:]+):(.*)$')
    if not rank or not is_of_event(key, wanted.event_id) then return nil end
    local row = handled_reply(key, rank, false)
    if not row or wanted.type ~= '' and row[3] ~= wanted.type or tonumber(row[10]) >= before then return nil end
    return is_outstanding(row[6], wanted.outstanding) and row or nil
  end)
end

-- Reply: the endpoints that keep handled events.
function ops.handled_endpoints()
  write_all()
  return redis.call('SMEMBERS', base .. ':he')
end

-- Arguments: endpoint. Reply: how many deliveries it keeps, and the sum of the sizes of their bodies.
function ops.handled_stats(arg)
  write_all()
  return {tostring(redis.call('ZCARD', handled_index(arg[1]))), redis.call('GET', handled_bytes(arg[1])) or '0'}
end

-- A batch is its generation, its start, its end or '', and its plan, with spaces between them.
local function batches_name(endpoint)
  return base .. ':hr:' .. endpoint
end

local function batch_of(endpoint, handler)
  local known = redis.call('HGET', batches_name(endpoint), handler)
  if not known then return nil end
  local generation, start, over, plan = string.match(known, '^(%d+) (%S+) (%S*) (.*)$')
  return generation and {generation, start, over, plan} or error('the record of a batch of replays cannot be read')
end

-- Reply: the time by the clock of this shard.
function ops.time()
  return text(now)
end

-- Arguments: endpoint, handler, the start of its batch. No event that is handled later is recorded with an earlier time.
function ops.cut_off(arg)
  redis.call('HSET', cut_offs(arg[1]), arg[2], arg[3])
  redis.call('PEXPIRE', cut_offs(arg[1]), milliseconds(retention))
  return ''
end

-- Arguments: as for `cut_off`. The batch has ended.
function ops.end_cut_off(arg)
  local known = redis.call('HGET', cut_offs(arg[1]), arg[2])
  if known and tonumber(known) == tonumber(arg[3]) then redis.call('HDEL', cut_offs(arg[1]), arg[2]) end
  return ''
end

-- Arguments: endpoint, handler, generation, plan, start. Reply: the handler's last batch.
function ops.begin_replay_batch(arg)
  local known = batch_of(arg[1], arg[2])
  if known and tonumber(known[1]) >= tonumber(arg[3]) then return known end
  local new = {arg[3], arg[5], '', arg[4]}
  redis.call('HSET', batches_name(arg[1]), arg[2], table.concat(new, ' '))
  return new
end

-- Arguments: endpoint, handler, generation.
function ops.end_replay_batch(arg)
  local known = batch_of(arg[1], arg[2])
  if not known or known[1] ~= arg[3] or known[3] ~= '' then return '' end
  known[3] = text(now)
  redis.call('HSET', batches_name(arg[1]), arg[2], table.concat(known, ' '))
  return ''
end

-- Arguments: endpoint. Reply: the name and the batch of each handler.
function ops.replay_batches(arg)
  local found = {}
  for _, handler in ipairs(redis.call('HKEYS', batches_name(arg[1]))) do
    found[#found + 1] = {handler, batch_of(arg[1], handler)}
  end
  return found
end

-- The server deletes deliveries that have expired by its own clock, but not their members in the index. Arguments:
-- endpoint. Reply: how many of the oldest members were removed.
function ops.sweep_handled(arg)
  write_all()
  return tostring(forget_oldest_handled(arg[1], MOST_DELETED, nil))
end
