-- Dead letters, and deliveries kept for the case that a claim ends unsettled.

local LETTER = {'endpoint', 'event_id', 'type', 'received', 'reason', 'error', 'attempts',
  'finished', 'at', 'history', 'until', 'seq', 'owed'}

-- A delivery that was kept is no dead letter while an attempt at its event still runs.
local function is_hidden(record)
  return record.letter == 'kept' and is_live(record)
end

local function is_visible(record)
  return record ~= nil and record.letter and not is_hidden(record)
end

-- `delivery` is {endpoint, event_id, has_type, type, received, body}; nil leaves what is kept.
-- Leaves the record to be written.
local function write_letter(key, record, kind, delivery, facts)
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
    place(index, seq .. ':' .. key, text(now))
  end
  record.letter = kind
end

local function forget_letter(key)
  local name = base .. ':l:' .. key
  local known = redis.call('HMGET', name, 'endpoint', 'seq')
  redis.call('DEL', name)
  if not known[1] then return end
  place(base .. ':x', known[2] .. ':' .. key, nil)
  place(base .. ':x:' .. known[1], known[2] .. ':' .. key, nil)
end

local function keep(key, delivery, record)
  local ends = record.token and text(record.ends) or ''
  write_letter(key, record, 'kept', delivery, {'reason', 'interrupted', 'error', '',
    'attempts', record.attempt, 'finished', record.finished, 'owed', record.owed,
    'history', record.history, 'until', ends})
  write_record(key, record)
end

local function letter_reply(key, with_body)
  local record = unfinished(key)
  if not is_visible(record) then return nil end
  local name = base .. ':l:' .. key
  local found = redis.call('HMGET', name, unpack(LETTER))
  if not found[1] then return nil end -- somebody has deleted it, or a full server evicted it
  if record.letter == 'kept' and found[11] ~= '' then
    found[10] = with_failure(found[10], tonumber(found[7]) or 0, tonumber(found[11]) or 0, INTERRUPTED)
  end
  found[11] = with_body and redis.call('HGET', name, 'body') or ''
  return found
end

-- key, token, delivery[6]
function ops.keep(arg)
  local key, record = arg[1], owned(arg[1], arg[2])
  if not record then return LOST end
  if not record.endpoint then
    keep(key, {unpack(arg, 3, 8)}, record)
  end
  return HELD
end

-- key, delivery[6]
function ops.keep_in_flight(arg)
  local key = arg[1]
  local record = record_of(key) or new_record()
  if record.done_until or record.letter or record.endpoint then return HELD end
  keep(key, {unpack(arg, 2, 7)}, record)
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
  local members = read_index('ZRANGE', index, offset, offset + stretch - 1)
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
