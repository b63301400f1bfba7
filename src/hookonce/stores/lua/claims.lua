-- Claims: one owner at a time, by a token; and how their owners settle them.

local function claim(key, token, lease, is_replay)
  if is_new(key) then
    local count, finished = grant(key, nil, token, lease, false)
    return {'C', tostring(count), finished, text(lease)}
  end
  if is_done(key) then return {'D'} end
  local known = attempt_of(key)
  if is_live(known) then
    cap(key, known)
    if known.token == token then
      return {'C', tostring(known.attempt), known.finished, text(known.lease)}
    end
    return {'F', text(known.ends)}
  end
  local entry = entry_of(key)
  if entry then return {'F', text(math.max(due_of(entry), now))} end
  if not is_replay and kept_flag(key) then return {'X'} end
  local count, finished = grant(key, known, token, lease, false)
  return {'C', tostring(count), finished, text(lease)}
end

-- key, token, lease
function ops.claim(arg)
  return claim(arg[1], arg[2], tonumber(arg[3]), false)
end

-- key, token, lease
function ops.replay(arg)
  local key = arg[1]
  if not is_visible(key) then return 'N' end
  local name = base .. ':a:' .. key
  if redis.call('EXISTS', name) == 0 then
    local letter = letter_reply(key, false)
    redis.call('HSET', name, 'until', '0', 'lease', '0', 'attempt', letter[7],
      'finished', letter[8], 'history', letter[10], 'expires', text(now + retention))
    redis.call('PEXPIRE', name, milliseconds(retention))
  end
  redis.call('HSET', base .. ':l:' .. key, 'kept', '0')
  return claim(key, arg[2], tonumber(arg[3]), true)
end

-- key, token, lease, finished
function ops.extend(arg)
  local key, lease = arg[1], tonumber(arg[3])
  local known = owned(key, arg[2])
  if not known then return LOST end
  pass_when_full()
  local finished = union(known.finished, arg[4])
  redis.call('HSET', base .. ':a:' .. key, 'until', text(now + lease), 'finished', finished)
  keep_record(key, lease)
  set_live(key, now + lease)
  local entry = entry_of(key)
  if entry then
    set_due(key, entry, lease)
  elseif kept_flag(key) == '1' then
    redis.call('HSET', base .. ':l:' .. key, 'finished', finished, 'until', text(now + lease))
  end
  return HELD
end

local function give_back(key, token, nonce, finished, failure, failure_text, delay)
  local known = owned(key, token)
  if not known then return repeated(':a:', key, nonce) end
  pass_when_full()
  finished = union(known.finished, finished)
  local history = known.history
  if failure ~= '' then history = with_failure(history, known.attempt, now, failure) end
  local entry = entry_of(key)
  end_claim(key, finished, history, nonce)
  if entry then
    set_due(key, entry, delay)
  elseif kept_flag(key) == '1' then
    write_letter(key, nil, {'reason', 'exhausted', 'error', failure_text, 'finished', finished,
      'history', history, 'kept', '0'})
  end
  return HELD
end

-- key, token, nonce, finished, error as JSON or '', error, seconds
function ops.give_back(arg)
  return give_back(arg[1], arg[2], arg[3], arg[4], arg[5], arg[6], tonumber(arg[7]))
end

local function finish(key, nonce)
  pass_when_full()
  forget_attempt(key)
  forget_entry(key)
  forget_letter(key)
  redis.call('SET', base .. ':d:' .. key, text(now + retention) .. ' ' .. nonce,
    'PX', milliseconds(retention))
end

-- key
function ops.complete(arg)
  finish(arg[1], '')
  return HELD
end

-- key, nonce
function ops.discard(arg)
  local key, nonce = arg[1], arg[2]
  if is_visible(key) then
    finish(key, nonce)
    return '1'
  end
  local done = redis.call('GET', base .. ':d:' .. key)
  return done and string.match(done, ' (.*)$') == nonce and '1' or '0'
end

-- key, token, nonce, finished, error as JSON or '', error, reason, delivery[6] if given
function ops.bury(arg)
  local key, nonce = arg[1], arg[3]
  local known = owned(key, arg[2])
  if not known then return repeated(':l:', key, nonce) end
  local delivery
  if #arg > 7 then
    delivery = {unpack(arg, 8, 13)}
  else
    local entry = entry_of(key)
    if entry then
      delivery = {entry.endpoint, entry.event_id, entry.type and '1' or '0', entry.type,
        entry.received, body_of(key)}
    elseif not kept_flag(key) then
      return 'N'
    end
  end
  local history = known.history
  if arg[5] ~= '' then history = with_failure(history, known.attempt, now, arg[5]) end
  pass_when_full()
  forget_attempt(key)
  forget_entry(key)
  write_letter(key, delivery, {'reason', arg[7], 'error', arg[6], 'attempts', known.attempt,
    'finished', union(known.finished, arg[4]), 'history', history, 'kept', '0', 'settled', nonce})
  return HELD
end
