-- The record of an event: that it is done, or its attempts, the claim that lives, and what there is
-- of it in the inbox.

local function name_of(key)
  return base .. ':a:' .. key
end

-- token: of the claim; false if it was settled     ends, lease: of the claim     attempt: the number
-- expires: when the record may be forgotten        finished, outstanding: handlers' names     history: failures
-- settled: the nonce of the call that settled the last claim
-- letter: 'dead', 'kept' for the case that the claim ends unsettled, false, or of what is kept since the sender
-- may not bring it again the Unix time until which it may
-- endpoint: of the inbox it is in, or false; then also event_id, type ('' for none), received, seq, size,
-- put: the token it was put with, due: when, delay: by how much that was put off.
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

-- A done event has a time instead: until when it is done; and the nonce of the call that discarded it.
local function unpacked(string_or_false)
  if not string_or_false then return nil end
  local first, second, lease, attempt, expires, finished, history, settled, letter, outstanding,
    endpoint, event_id, event_type, received, seq, size, put, due, delay = cmsgpack.unpack(string_or_false)
  if type(first) == 'number' then return {done_until = first, discarded = second} end
  return {
    token = first, ends = second, lease = lease, attempt = attempt, expires = expires,
    finished = finished, history = history, settled = settled, dead_letter = letter, outstanding = outstanding,
    endpoint = endpoint, event_id = event_id, type = event_type, received = received, seq = seq,
    size = size, put = put, due = due, delay = delay,
  }
end

local function new_record()
  return {token = false, ends = 0, lease = 0, attempt = 0, expires = now + retention,
    finished = '', history = '', settled = '', letter = false, outstanding = '', endpoint = false}
end

-- What is done has no attempts any more; what was done long enough ago is new.
local function record_of(key)
  local record = unpacked(redis.call('GET', name_of(key)))
  if record and record.done_until and record.done_until <= now then return nil end
  return record
end

local function unfinished(key)
  local record = record_of(key)
  return record and not record.done_until and record or nil
end

-- Whether it is worth while to unpack a record: what it is_outstanding stands in it letter by letter.
local function may_be_outstanding(key, name)
  return name == '' or string.find(redis.call('GET', name_of(key)) or '', name, 1, true) ~= nil
end

-- It lasts its retention from the last grant on, and as long as the claim, an entry or a letter.
local function write_record(key, record)
  if record.endpoint or record.dead_letter then
    redis.call('SET', name_of(key), packed(record))
  else
    redis.call('SET', name_of(key), packed(record),
      'PX', milliseconds(math.max(record.expires, record.ends) - now))
  end
end

-- A lease ends by itself: CLAIMED.expire, FETCHED.expire, SAVED_CLAIMED.expire, KEPT.expire, REPLAYED.expire.
local function is_live(record)
  return record ~= nil and not record.done_until and now < record.ends
end

-- A lease cannot end later than it lasts, unless the clock was set back: then it may also live again
-- after it was taken from the list of live ones.
local function cap(key, record)
  if record.ends > now + record.lease then
    record.ends = now + record.lease
    write_record(key, record)
  end
  set_live(key, record.ends)
end

-- Leaves the record to be written.
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

-- What has finished is outstanding no more. Leaves the record to be written.
local function note(record, finished, outstanding)
  record.finished = union(record.finished, finished)
  record.outstanding = without(union(record.outstanding, outstanding), record.finished)
end

-- Of a claim that was lost, what has finished is a fact all the same. Without an attempt there is
-- nothing that can have succeeded.
local function lose(key, finished)
  local record = finished ~= '' and unfinished(key)
  if record and record.attempt > 0 then
    pass_when_full()
    note(record, finished, '')
    write_record(key, record)
  end
  return LOST
end

-- A settling call whose reply was lost is repeated with the same nonce: it was this call that did it.
local function repeated(key, nonce, finished)
  local record = unfinished(key)
  if record and record.settled == nonce then return HELD end
  return lose(key, finished)
end

-- Leaves the record to be written.
local function end_claim(key, record, nonce)
  record.token, record.ends, record.settled = false, 0, nonce
  place(LIVE, key, nil)
end
