-- The record of an event. For a done event it holds the time until which the event is remembered; for any other event
-- it holds the attempts, the live claim and the entry in the inbox.

local function name_of(key)
  return base .. ':a:' .. key
end

-- The fields of a record:
--   token        of the claim; false after the claim was settled
--   ends, lease  end and length of the claim's lease
--   attempt      the number of the last attempt
--   expires      when the record may be forgotten
--   finished, outstanding    names of handlers
--   history      the failed attempts
--   settled      the nonce of the call that settled the last claim
--   dead_letter  false; 'dead'; 'kept' for a delivery that becomes a dead letter if the claim ends unsettled; or the Unix
--                time at which a kept delivery becomes a dead letter, until which the sender may send the event again;
--                or 'damaged' for a dead letter whose record could not be read (damaged.lua)
-- and if the event is in the inbox:
--   endpoint     of the inbox; false if the event is not in an inbox
--   event_id, type ('' for none), received, size    of the delivery
--   seq          its number in the order of enqueueing
--   put          the token of its enqueue
--   due, delay   the time from which it may be fetched, and how many seconds ahead that was when it was set
local function packed(record)
  if not record.endpoint then
    return cmsgpack.pack(record.token, record.ends, record.lease, record.attempt, record.expires,
      record.finished, record.history, record.settled, record.dead_letter, record.outstanding)
  end
  return cmsgpack.pack(record.token, record.ends, record.lease, record.attempt, record.expires,
    record.finished, record.history, record.settled, record.dead_letter, record.outstanding,
    record.endpoint, record.event_id, record.type, record.received, record.seq, record.size,
    record.put, record.due, record.delay)
end

-- The record of a done event has two other fields: the time until which it is remembered, and the nonce of the call that
-- discarded it. The types of all fields are checked, so that bytes that are no record are not taken for one. The records
-- of a later format must not have these numbers and types of fields.
--
-- Every call of the script creates these functions anew. So the checks of texts are functions inside one function, which
-- are created only for a record that has texts.
local function are_readable(finished, outstanding, history)
  -- Whether a text is a string as Python writes it in JSON.
  local function is_text(line)
    local inner = string.match(line, '^"(.*)"$')
    if not inner then return false end
    inner = string.gsub(string.gsub(inner, '\\[\\"/bfnrt]', ''), '\\u%x%x%x%x', '')
    return not string.find(inner, '["\\%c\128-\255]')
  end
  for _, joined in ipairs({finished, outstanding}) do
    for _, line in ipairs(lines(joined)) do
      if not is_text(line) then return false end
    end
  end
  for _, line in ipairs(lines(history)) do
    local number, at, failure = string.match(line, '^(%S+) (%S+) (.*)$')
    if not (number and tonumber(number) and tonumber(at) and is_text(failure)) then return false end
  end
  return true
end

-- Returns nil for no bytes, and false for bytes that are no record.
local function unpacked(string_or_false)
  if not string_or_false then return nil end
  local is_packed, first, second, lease, attempt, expires, finished, history, settled, dead_letter, outstanding,
    endpoint, event_id, event_type, received, seq, size, put, due, delay, more = pcall(cmsgpack.unpack, string_or_false)
  if not is_packed then return false end
  if type(first) == 'number' then
    if type(second) ~= 'string' or lease ~= nil then return false end
    return {done_until = first, discarded = second}
  end
  local is_record = (first == false or type(first) == 'string') and type(second) == 'number'
    and type(lease) == 'number' and type(attempt) == 'number' and type(expires) == 'number'
    and type(finished) == 'string' and type(history) == 'string' and type(settled) == 'string'
    and (dead_letter == false or type(dead_letter) == 'number' or dead_letter == 'dead' or dead_letter == 'kept'
      or dead_letter == 'damaged') and type(outstanding) == 'string'
    and (finished == '' and outstanding == '' and history == '' or are_readable(finished, outstanding, history))
  if is_record and endpoint == nil then
    is_record = event_id == nil
  elseif is_record then
    is_record = type(endpoint) == 'string' and type(event_id) == 'string' and type(event_type) == 'string'
      and tonumber(received) and type(seq) == 'string' and type(size) == 'number' and type(put) == 'string'
      and type(due) == 'number' and type(delay) == 'number' and more == nil
  end
  if not is_record then return false end
  return {
    token = first, ends = second, lease = lease, attempt = attempt, expires = expires,
    finished = finished, history = history, settled = settled, dead_letter = dead_letter, outstanding = outstanding,
    endpoint = endpoint, event_id = event_id, type = event_type, received = received, seq = seq,
    size = size, put = put, due = due, delay = delay,
  }
end

local function new_record()
  return {token = false, ends = 0, lease = 0, attempt = 0, expires = now + retention,
    finished = '', history = '', settled = '', dead_letter = false, outstanding = '', endpoint = false}
end

local set_aside -- damaged.lua defines it

-- The record in these bytes, or in place of it that of a dead letter if they cannot be read; nil if there are none.
local function readable(key, stored)
  local record = unpacked(stored)
  if record == false then return set_aside(key, stored) end
  return record
end

-- The record of an event; nil for a new event, or a done event whose retention is over.
local function record_of(key)
  local record = readable(key, redis.call('GET', name_of(key)))
  if record and record.done_until and record.done_until <= now then return nil end
  return record
end

local function unfinished(key)
  local record = record_of(key)
  return record and not record.done_until and record or nil
end

-- Whether a packed record contains a handler's name: a quick test before unpacking.
local function may_be_outstanding(key, name)
  return name == '' or string.find(redis.call('GET', name_of(key)) or '', name, 1, true) ~= nil
end

-- A record expires after the retention, counted from the last granted claim, but never while a claim is live or an entry
-- or dead letter exists.
local function write_record(key, record)
  if record.endpoint or record.dead_letter then
    redis.call('SET', name_of(key), packed(record))
  else
    redis.call('SET', name_of(key), packed(record),
      'PX', milliseconds(math.max(record.expires, record.ends) - now))
  end
end

-- Whether a claim is live. A lease ends by itself: CLAIMED.expire, FETCHED.expire, KEPT_CLAIMED.expire,
-- LAST_CHANCE.expire, REPLAYED.expire.
local function is_live(record)
  return record ~= nil and not record.done_until and now < record.ends
end

-- After the clock was set back, a lease has more time left than its length: shorten it. The claim may
-- also have ended before and be live again now: put it back into the list of live claims.
local function cap(key, record)
  if record.ends > now + record.lease then
    record.ends = now + record.lease
    write_record(key, record)
  end
  set_live(key, record.ends)
end

-- Gives the event to a new owner. The caller writes the record.
local function grant(key, record, token, lease)
  if record.token then
    record.history = with_failure(record.history, record.attempt, record.ends, INTERRUPTED)
  end
  record.attempt = record.attempt + 1
  record.token, record.ends, record.lease = token, now + lease, lease
  record.expires = now + retention
end

local function owned(key, token)
  local record = unfinished(key)
  return record and record.token == token and record or nil
end

-- Adds finished and outstanding handlers; a finished handler is not outstanding. The caller writes the record.
local function note(record, finished, outstanding)
  record.finished = union(record.finished, finished)
  record.outstanding = without(union(record.outstanding, outstanding), record.finished)
end

-- The reply to an owner that has lost its claim. Its finished handlers are still recorded, unless the event is new:
-- without an attempt no handler can have finished.
local function lose(key, finished)
  local record = finished ~= '' and unfinished(key)
  if record and record.attempt > 0 then
    pass_when_full()
    note(record, finished, '')
    write_record(key, record)
  end
  return LOST
end

-- The reply to a call that cannot settle its claim. If the call has the nonce of the last settling call, it is a
-- repetition after a lost reply, and gets the same reply.
local function repeated(key, nonce, finished)
  local record = unfinished(key)
  if record and record.settled == nonce then return HELD end
  return lose(key, finished)
end

-- Ends the claim. The caller writes the record.
local function end_claim(key, record, nonce)
  record.token, record.ends, record.settled = false, 0, nonce
  place(LIVE, key, nil)
end
