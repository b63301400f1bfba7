-- Dead letters, and deliveries kept for the case that a claim ends unsettled.

local LETTER = {'endpoint', 'event_id', 'type', 'received', 'reason', 'error', 'attempts',
  'finished', 'at', 'history', 'kept', 'until', 'seq'}

local function kept_flag(key)
  return redis.call('HGET', base .. ':l:' .. key, 'kept')
end

-- A delivery that was kept is no dead letter while an attempt at its event still runs.
local function is_hidden(key, kept)
  return kept == '1' and is_live(attempt_of(key))
end

local function is_visible(key)
  local kept = kept_flag(key)
  return kept and not is_hidden(key, kept)
end

-- `delivery` is {endpoint, event_id, has_type, type, received, body}; nil leaves what is kept.
local function write_letter(key, delivery, facts)
  local name = base .. ':l:' .. key
  local known = redis.call('HMGET', name, 'endpoint', 'seq')
  local endpoint, seq = known[1], known[2]
  if not endpoint then
    endpoint, seq = delivery[1], next_number()
    redis.call('HSET', name, 'endpoint', endpoint, 'event_id', delivery[2],
      'received', delivery[5], 'body', delivery[6], 'seq', seq)
    if delivery[3] == '1' then redis.call('HSET', name, 'type', delivery[4]) end
  end
  redis.call('HSET', name, 'at', text(now), unpack(facts))
  for _, index in ipairs({base .. ':x', base .. ':x:' .. endpoint}) do
    redis.call('ZADD', index, text(now), seq .. ':' .. key)
  end
end

local function forget_letter(key)
  local name = base .. ':l:' .. key
  local known = redis.call('HMGET', name, 'endpoint', 'seq')
  if not known[1] then return end
  redis.call('DEL', name)
  redis.call('ZREM', base .. ':x', known[2] .. ':' .. key)
  redis.call('ZREM', base .. ':x:' .. known[1], known[2] .. ':' .. key)
end

local function keep(key, delivery, known)
  local ends = known and known.token and text(known.ends) or ''
  write_letter(key, delivery, {'reason', 'interrupted', 'error', '', 'attempts', known and known.attempt or 0,
    'finished', known and known.finished or '', 'history', known and known.history or '',
    'kept', '1', 'until', ends})
end

local function letter_reply(key, with_body)
  local name = base .. ':l:' .. key
  local found = redis.call('HMGET', name, unpack(LETTER))
  if not found[1] or is_hidden(key, found[11]) then return nil end
  if found[11] == '1' and found[12] ~= '' then
    found[10] = with_failure(found[10], tonumber(found[7]), tonumber(found[12]), INTERRUPTED)
  end
  found[12] = with_body and redis.call('HGET', name, 'body') or ''
  return found
end

-- key, token, delivery[6]
function ops.keep(arg)
  local key, known = arg[1], owned(arg[1], arg[2])
  if not known then return LOST end
  if not is_in_inbox(key) then
    keep(key, {unpack(arg, 3, 8)}, known)
  end
  return HELD
end

-- key, delivery[6]
function ops.keep_in_flight(arg)
  local key = arg[1]
  if is_done(key) or kept_flag(key) or is_in_inbox(key) then return HELD end
  keep(key, {unpack(arg, 2, 7)}, attempt_of(key))
  return HELD
end

-- key
function ops.letter(arg)
  return letter_reply(arg[1], true) or 'N'
end

-- endpoint or '', has_type, type, offset, limit: one stretch of the list
function ops.letters(arg)
  local index = arg[1] == '' and base .. ':x' or base .. ':x:' .. arg[1]
  local offset, limit, stretch = tonumber(arg[4]), tonumber(arg[5]), 200
  local members = redis.call('ZRANGE', index, offset, offset + stretch - 1)
  local found = {}
  for n, member in ipairs(members) do
    if #found == limit then return {tostring(offset + n - 1), found} end
    local key = key_of(member)
    if arg[2] == '0' or redis.call('HGET', base .. ':l:' .. key, 'type') == arg[3] then
      found[#found + 1] = letter_reply(key, false)
    end
  end
  return {#members < stretch and '-' or tostring(offset + stretch), found}
end
