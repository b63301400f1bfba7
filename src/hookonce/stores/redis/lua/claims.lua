-- The steps that grant and end claims. An event has one owner at a time, identified by a token.
-- STATE.step in a comment, such as CLAIMED.enqueue, is the entry of the table LIFE in stores/life/table.py.

local function granted(record)
  return {'C', text(record.lease), tostring(record.attempt), record.finished, record.outstanding}
end

local function claim(key, record, token, lease)
  if is_live(record) then
    -- CLAIMED.claim, FETCHED.claim, KEPT_CLAIMED.claim, KEPT_CLAIMED.replay, LAST_CHANCE.claim, REPLAYED.claim,
    -- REPLAYED.replay
    cap(key, record)
    return record.token == token and granted(record) or {'F', text(record.ends)}
  end
  if record.endpoint then return {'F', text(math.max(due_of(record), now))} end -- WAITING.claim
  grant(key, record, token, lease) -- FREE.claim, KEPT_FREE.claim, KEPT_FREE.replay, INTERRUPTED.replay, DEAD.replay
  write_record(key, record)
  set_live(key, record.ends)
  return granted(record)
end

-- Arguments: key, token, lease. Reply: 'C' for the first claim of an event.
function ops.claim(arg)
  local key, token, lease = arg[1], arg[2], tonumber(arg[3])
  local record = new_record()
  grant(key, record, token, lease)
  -- Not `call`: SET fails with a full memory, but the claim of a known event can still be answered.
  local answer = redis.pcall('SET', name_of(key), packed(record), 'NX',
    'PX', milliseconds(math.max(retention, lease)))
  if answer and answer.ok then
    set_live(key, record.ends)
    return 'C'
  end
  record = record_of(key) or new_record()
  if record.done_until then return {'D'} end -- DONE.claim
  if record.dead_letter == 'damaged' and not is_live(record) then return {'U'} end
  if record.dead_letter and not sender_retries(record) and not is_live(record) then
    return {'X'} -- INTERRUPTED.claim, DEAD.claim
  end
  return claim(key, record, token, lease)
end

-- Arguments: key, token, lease.
function ops.replay(arg)
  local key, record = arg[1], unfinished(arg[1])
  if not is_visible(record) and not (record and sender_retries(record)) then return 'N' end
  if is_kept(record) and not sender_retries(record) then record.dead_letter = 'dead' end
  write_record(key, record)
  return claim(key, record, arg[2], tonumber(arg[3]))
end

-- Arguments: key, token, lease, finished, outstanding.
function ops.extend(arg)
  local key, lease = arg[1], tonumber(arg[3])
  local record = owned(key, arg[2])
  if not record then return lose(key, arg[4]) end
  pass_when_full()
  record.ends = now + lease
  note(record, arg[4], arg[5])
  -- FREE.extend, CLAIMED.extend, KEPT_FREE.extend, KEPT_CLAIMED.extend, LAST_CHANCE.extend, INTERRUPTED.extend,
  -- DEAD.extend, REPLAYED.extend
  set_live(key, record.ends)
  if record.endpoint then set_due(key, record, lease) end -- WAITING.extend, FETCHED.extend
  write_record(key, record)
  return HELD
end

-- Arguments: key, token, nonce, finished, error as JSON or '', error, seconds, outstanding, '1' if a handler began.
function ops.give_back(arg)
  local key, nonce = arg[1], arg[3]
  local record = owned(key, arg[2])
  if not record then return repeated(key, nonce, arg[4]) end
  pass_when_full()
  note(record, arg[4], arg[8])
  record.history = with_failure(record.history, record.attempt, now, arg[5])
  if arg[9] ~= '1' then record.attempt = record.attempt - 1 end
  end_claim(key, record, nonce) -- FREE.release, CLAIMED.release, DEAD.release, REPLAYED.release
  if record.endpoint then -- WAITING.release, FETCHED.release
    set_due(key, record, tonumber(arg[7]))
  elseif sender_retries(record) then -- KEPT_FREE.release, KEPT_CLAIMED.release
    if arg[6] ~= '' then write_dead_letter(key, record, record.dead_letter, nil, 'exhausted', arg[6]) end
  elseif is_kept(record) then -- LAST_CHANCE.release, INTERRUPTED.release
    write_dead_letter(key, record, 'dead', nil, 'exhausted', arg[6])
  end
  write_record(key, record)
  return HELD
end

-- FREE.complete, CLAIMED.complete, WAITING.complete, FETCHED.complete, KEPT_FREE.complete, KEPT_CLAIMED.complete,
-- LAST_CHANCE.complete, INTERRUPTED.complete, DEAD.complete, REPLAYED.complete, DONE.complete
local function finish(key, nonce)
  pass_when_full()
  local known = unpacked(redis.call('SET', name_of(key), cmsgpack.pack(now + retention, nonce),
    'PX', milliseconds(retention), 'GET'))
  if known == false then known = {dead_letter = true} end -- unreadable; the next fetch removes it from the inbox
  if not known or known.done_until then return end
  place(LIVE, key, nil)
  if known.endpoint then forget_entry(key, known) end
  if known.dead_letter then forget_dead_letter(key) end
end

-- Arguments: key.
function ops.complete(arg)
  finish(arg[1], '')
  return HELD
end

-- Arguments: key, nonce. Reply: '1' if there was a dead letter, else '0'.
function ops.discard(arg)
  local key, nonce = arg[1], arg[2]
  local record = record_of(key)
  if record and record.done_until then return record.discarded == nonce and '1' or '0' end
  if not is_visible(record) then return '0' end
  finish(key, nonce) -- KEPT_FREE.discard, INTERRUPTED.discard, DEAD.discard, REPLAYED.discard
  return '1'
end

-- Arguments: key, token, nonce, finished, error as JSON or '', error, reason, outstanding, and the 5 parts of a
-- delivery if one is given.
-- FREE.bury, CLAIMED.bury, WAITING.bury, FETCHED.bury, KEPT_FREE.bury, KEPT_CLAIMED.bury, LAST_CHANCE.bury,
-- INTERRUPTED.bury, DEAD.bury, REPLAYED.bury
function ops.bury(arg)
  local key, nonce = arg[1], arg[3]
  local record = owned(key, arg[2])
  if not record then return repeated(key, nonce, arg[4]) end
  local delivery
  if #arg > 8 then
    delivery = {unpack(arg, 9, 13)}
  elseif record.endpoint then
    delivery = {record.endpoint, record.event_id, record.type, record.received, body_of(key)}
  elseif not record.dead_letter then
    return 'N'
  end
  record.history = with_failure(record.history, record.attempt, now, arg[5])
  pass_when_full()
  note(record, arg[4], arg[8])
  if record.endpoint then forget_entry(key, record) end
  write_dead_letter(key, record, 'dead', delivery, arg[7], arg[6])
  end_claim(key, record, nonce)
  write_record(key, record)
  return HELD
end
