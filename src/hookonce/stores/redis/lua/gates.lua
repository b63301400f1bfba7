-- Gates, as in gates.py, whose functions the steps are named after: one run at a time for a handler and a
-- key, and the highest mark that has succeeded. A gate lies in the shard of its own name.
--
--   BASE:k:<gate>  string: its record, see below              expires with the lease or the mark
--   BASE:z:<gate>  zset: the events that wait, as they came   expires with the lease

-- A mark's time is a text of 20 digits, which sorts as its number: that may have more than Lua's have.
-- token: of who has it, or false        ends, lease: of that one; who waits is forgotten at that end
-- created, event_id: the mark; created is false where there is none     expires: when that is forgotten
-- has_waiting: whether somebody waits
-- nonce, called: of the last call that has called somebody: repeated, it is told the same
local function gate_of(name)
  local stored = redis.call('GET', base .. ':k:' .. name)
  local token, ends, lease, created, event_id, expires, has_waiting, nonce, called = false, 0, 0, false, '',
    0, false, '', ''
  if stored then
    token, ends, lease, created, event_id, expires, has_waiting, nonce, called = cmsgpack.unpack(stored)
  end
  -- A lease cannot end later than it lasts, unless the clock was set back.
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
  return {token = token, ends = ends, lease = lease, created = created, event_id = event_id,
    expires = expires, has_waiting = has_waiting, nonce = nonce, called = called, is_capped = is_capped}
end

local function write_gate(name, gate)
  pass_when_full()
  local rest = 0
  if gate.token or gate.has_waiting or gate.nonce ~= '' then rest = gate.ends - now end
  if gate.created then rest = math.max(rest, gate.expires - now) end
  if rest <= 0 then
    redis.call('DEL', base .. ':k:' .. name)
    return
  end
  local stored = cmsgpack.pack(gate.token, gate.ends, gate.lease, gate.created, gate.event_id, gate.expires,
    gate.has_waiting, gate.nonce, gate.called)
  redis.call('SET', base .. ':k:' .. name, stored, 'PX', milliseconds(rest))
  if gate.has_waiting then
    redis.call('PEXPIRE', base .. ':z:' .. name, milliseconds(gate.ends - now))
  end
end

-- gate, token, lease, created or '', event_id, '1' to drop ties, waiting or '':
-- 'E', or {'B', until when it is busy}, or {'S', created, event_id} of the mark
function ops.enter(arg)
  local name, token, lease, created, event_id, waiting = arg[1], arg[2], tonumber(arg[3]), arg[4], arg[5], arg[7]
  local gate = gate_of(name)
  if gate.token ~= token then
    if created ~= '' and gate.created then
      local is_late = is_behind(gate.created, created)
      if created == gate.created then is_late = arg[6] == '1' or event_id == gate.event_id end
      if is_late then return {'S', gate.created, gate.event_id} end
    end
    if gate.token then
      if waiting ~= '' then
        pass_when_full()
        redis.call('ZADD', base .. ':z:' .. name, 'NX', next_number(), waiting)
        gate.has_waiting = true
      end
      if waiting ~= '' or gate.is_capped then write_gate(name, gate) end
      return {'B', text(gate.ends)}
    end
  end
  gate.token, gate.ends, gate.lease = token, now + lease, lease
  write_gate(name, gate)
  return 'E'
end

-- gate, token, nonce, created or '', event_id, who waits no more or '': who is to come next, or ''
function ops.leave(arg)
  local name, nonce, created, event_id = arg[1], arg[3], arg[4], arg[5]
  local gate = gate_of(name)
  if gate.nonce == nonce then return gate.called end
  local is_higher = created ~= '' and (not gate.created or is_behind(created, gate.created)
    or (created == gate.created and is_behind(event_id, gate.event_id)))
  if is_higher then
    gate.created, gate.event_id, gate.expires = created, event_id, now + retention
  end
  if gate.token == arg[2] then gate.token = false end
  if gate.has_waiting and arg[6] ~= '' then
    pass_when_full()
    redis.call('ZREM', base .. ':z:' .. name, arg[6])
  end
  if not gate.token and gate.has_waiting then
    local first_two = redis.call('ZRANGE', base .. ':z:' .. name, 0, 1)
    pass_when_full()
    gate.nonce, gate.called = nonce, first_two[1] or ''
    gate.has_waiting = first_two[2] ~= nil
    redis.call('ZREM', base .. ':z:' .. name, gate.called)
  end
  write_gate(name, gate)
  return gate.nonce == nonce and gate.called or ''
end
