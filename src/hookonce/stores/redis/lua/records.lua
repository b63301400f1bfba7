-- The record of an event: that it is done, or its attempts, the claim that lives, and what there is
-- of it in the inbox.

local function name_of(key)
  return base .. ':a:' .. key
end

-- token: of the claim; false if it was settled     ends, lease: of the claim     attempt: the number
-- expires: when the record may be forgotten        finished, outstanding: handlers' names     history: failures
-- settled: the nonce of the call that settled the last claim
-- dead_letter: false; 'dead'; 'kept', if the delivery was kept for the case that the claim ends unsettled; or the
-- Unix time until which the sender may send the event again, after which the kept delivery is a dead letter
-- endpoint: of the inbox it is in, or false; then also event_id, type ('' for none), received, seq, size,
-- put: the token of its enqueue, due: when it may be fetched, delay: the seconds by which that was deferred.
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
  local first, second, lease, attempt, expires, finished, history, settled, dead_letter, outstanding,
    endpoint, event_id, event_type, received, seq, size, put, due, delay = cmsgpack.unpack(string_or_false)
  if type(first) == 'number' then return {done_until = first, discarded = second} end
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

-- The record of an event; nil for a new one, or a done one whose retention is over.
local function record_of(key)
  local record = unpacked(redis.call('GET', name_of(key)))
  if record and record.done_until and record.done_until <= now then return nil end
  return record
end

local function unfinished(key)
  local record = record_of(key)
  return record and not record.done_until and record or nil
end

-- Whether a packed record contains a handler's name. A quick test before it is unpacked.
local function may_be_outstanding(key, name)
  return name == '' or string.find(redis.call('GET', name_of(key)) or '', name, 1, true) ~= nil
end

-- A record expires its retention after the last grant, but not before its claim, entry or dead letter ends.
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

-- After the clock was set back, a lease has more time left than it lasts: shorten it. It may also be live again
-- after it was removed from the list of live claims.
local function cap(key, record)
  if record.ends > now + record.lease then
    record.ends = now + record.lease
    write_record(key, record)
  end
  set_live(key, record.ends)
end

-- The caller writes the record.
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

-- Finished handlers are removed from the outstanding ones. The caller writes the record.
local function note(record, finished, outstanding)
  record.finished = union(record.finished, finished)
  record.outstanding = without(union(record.outstanding, outstanding), record.finished)
end

-- The claim was lost, but finished handlers are still a fact. Without an attempt, no handler can have finished.
local function lose(key, finished)
  local record = finished ~= '' and unfinished(key)
  if record and record.attempt > 0 then
    pass_when_full()
    note(record, finished, '')
    write_record(key, record)
  end
  return LOST
end

-- A settling call whose reply was lost is repeated with the same nonce, and gets the same answer.
local function repeated(key, nonce, finished)
  local record = unfinished(key)
  if record and record.settled == nonce then return HELD end
  return lose(key, finished)
end

-- The caller writes the record.
local function end_claim(key, record, nonce)
  record.token, record.ends, record.settled = false, 0, nonce
  place(LIVE, key, nil)
end
