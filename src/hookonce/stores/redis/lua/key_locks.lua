-- Key locks; key_locks.py defines the steps. A key lock lets one attempt at a time handle a key, and keeps the
-- watermark: the newest event that has succeeded. The hash of its name selects the shard.
--
--   BASE:k:<lock>  string: its record, see below              expires with the lease or the watermark
--   BASE:z:<lock>  zset: the waiting events in their order    expires with the lease

-- The fields of a record:
--   token              of the owner, or false
--   ends, lease        end and length of the lease; waiting events are forgotten at its end
--   created, event_id, generation    the watermark; created is false if there is none. Its time is a text of 20 digits,
--                      which sorts as the number: Lua's numbers have too few digits
--   expires            when the watermark is forgotten
--   has_waiting        whether events wait
--   nonce, called      of the last release that called an event: a repetition of the release gets the same reply
local function key_lock_of(name)
  local stored = redis.call('GET', base .. ':k:' .. name)
  local token, ends, lease, created, event_id, expires, has_waiting, nonce, called, generation = false, 0, 0, false, '',
    0, false, '', '', 0
  if stored then
    token, ends, lease, created, event_id, expires, has_waiting, nonce, called, generation = cmsgpack.unpack(stored)
  end
  -- After the clock was set back, a lease has more time left than its length: shorten it.
  local is_capped = ends > now + lease
  ends = math.min(ends, now + lease)
  if ends <= now then
    if has_waiting then
      pass_when_full()
      redis.call('DEL', base .. ':z:' .. name)
    end
    token, has_waiting, nonce, called = false, false, '', ''
  end
  if expires <= now then created = false end
  return {token = token, ends = ends, lease = lease, created = created, event_id = event_id, generation = generation,
    expires = expires, has_waiting = has_waiting, nonce = nonce, called = called, is_capped = is_capped}
end

local function write_key_lock(name, key_lock)
  pass_when_full()
  local rest = 0
  if key_lock.token or key_lock.has_waiting or key_lock.nonce ~= '' then rest = key_lock.ends - now end
  if key_lock.created then rest = math.max(rest, key_lock.expires - now) end
  if rest <= 0 then
    redis.call('DEL', base .. ':k:' .. name)
    return
  end
  local stored = cmsgpack.pack(key_lock.token, key_lock.ends, key_lock.lease, key_lock.created, key_lock.event_id, key_lock.expires,
    key_lock.has_waiting, key_lock.nonce, key_lock.called, key_lock.generation)
  redis.call('SET', base .. ':k:' .. name, stored, 'PX', milliseconds(rest))
  if key_lock.has_waiting then
    redis.call('PEXPIRE', base .. ':z:' .. name, milliseconds(key_lock.ends - now))
  end
end

-- Arguments: name, token, lease, created or '', event_id, generation, '1' to drop ties, the event to queue if busy or ''.
-- Reply: 'E' if the lock is acquired, {'B', end of the lease} if it is busy, {'S', created, event_id, generation} of the
-- watermark if the event comes too late.
function ops.acquire_key_lock(arg)
  local name, token, lease, created, event_id, waiting = arg[1], arg[2], tonumber(arg[3]), arg[4], arg[5], arg[8]
  local key_lock = key_lock_of(name)
  if key_lock.token ~= token then
    if created ~= '' and key_lock.created then
      local is_late = is_behind(key_lock.created, created)
      if created == key_lock.created then
        is_late = arg[7] == '1'
        if event_id == key_lock.event_id then is_late = tonumber(arg[6]) <= key_lock.generation end
      end
      if is_late then return {'S', key_lock.created, key_lock.event_id, tostring(key_lock.generation)} end
    end
    if key_lock.token then
      if waiting ~= '' then
        pass_when_full()
        redis.call('ZADD', base .. ':z:' .. name, 'NX', next_number(), waiting)
        key_lock.has_waiting = true
      end
      if waiting ~= '' or key_lock.is_capped then write_key_lock(name, key_lock) end
      return {'B', text(key_lock.ends)}
    end
  end
  key_lock.token, key_lock.ends, key_lock.lease = token, now + lease, lease
  write_key_lock(name, key_lock)
  return 'E'
end

-- Arguments: name, token, nonce, created or '', event_id, generation, the event to remove from the queue or ''.
-- Reply: the event to call next, or ''.
function ops.release_key_lock(arg)
  local name, nonce, created, event_id, generation = arg[1], arg[3], arg[4], arg[5], tonumber(arg[6])
  local key_lock = key_lock_of(name)
  if key_lock.nonce == nonce then return key_lock.called end
  local is_higher = created ~= '' and (not key_lock.created or is_behind(created, key_lock.created)
    or (created == key_lock.created and (is_behind(event_id, key_lock.event_id)
      or (event_id == key_lock.event_id and generation > key_lock.generation))))
  if is_higher then
    key_lock.created, key_lock.event_id, key_lock.generation = created, event_id, generation
    key_lock.expires = now + retention
  end
  if key_lock.token == arg[2] then key_lock.token = false end
  if key_lock.has_waiting and arg[7] ~= '' then
    pass_when_full()
    redis.call('ZREM', base .. ':z:' .. name, arg[7])
  end
  if not key_lock.token and key_lock.has_waiting then
    local first_two = redis.call('ZRANGE', base .. ':z:' .. name, 0, 1)
    pass_when_full()
    key_lock.nonce, key_lock.called = nonce, first_two[1] or ''
    key_lock.has_waiting = first_two[2] ~= nil
    redis.call('ZREM', base .. ':z:' .. name, key_lock.called)
  end
  write_key_lock(name, key_lock)
  return key_lock.nonce == nonce and key_lock.called or ''
end
