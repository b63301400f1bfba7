-- What the steps share: the time, the names of keys, and the records behind them.
--
-- Everything of one event lies in one shard, and all keys of a shard begin with the same hash tag,
-- KEYS[1]. This file and its neighbours are joined to one script. ARGV is: the time ('' for the
-- server's own), the retention in seconds, the channel that wakes workers, '1' if the caller waits until
-- the call's writes are safe, and then for each step its name, the number of its arguments and the arguments.
--
-- Of an event <key>, with BASE for the hash tag:
--   BASE:d:<key>  string: it is done; until when, and by which discard         expires
--   BASE:a:<key>  hash: its attempts, and the claim that lives          expires, unless in the inbox
--   BASE:i:<key>  hash: it is in the inbox                                     until done or dead
--   BASE:l:<key>  hash: its dead letter, or the delivery kept for one          until done
-- Of an endpoint:
--   BASE:q:<endpoint>  zset: its inbox by the time due       BASE:o:<endpoint>  by the time put
--   BASE:n:<endpoint>  hash: bytes in the inbox, and when it was last looked into
--   BASE:x:<endpoint>  zset: its letters by the time buried; BASE:x of all endpoints
-- Of the shard: BASE:e endpoints that have an inbox, BASE:v live claims by their end, BASE:w workers
-- by the time seen, BASE:y their endpoints, BASE:r:<worker> list: the number and token of its last take, and what
-- that took, BASE:s a counter that breaks ties, BASE:t a mark to wait for.
--
-- A step reads and checks before it writes, so that an error leaves nothing half done.

local base, now, retention, channel = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end

local MOST_FAILURES = 20
-- Texts in a history are JSON; this one is written here, the others come from the client.
local INTERRUPTED = '"the process ended, or its lease ran out"'

local ops = {}
local HELD, LOST = 'H', 'L'

-- Set in passing, and acted upon once at the end of the call.
local latest_end, has_counted = nil, false
local to_wake = {}

-- Lua's own conversion would cut a time to 14 digits.
local function text(number)
  return string.format('%.17g', number)
end

local function milliseconds(seconds)
  return string.format('%.0f', math.max(1, math.ceil(seconds * 1000)))
end

local function lines(joined)
  local found = {}
  for line in string.gmatch(joined, '[^\n]+') do
    found[#found + 1] = line
  end
  return found
end

-- Names of handlers are one JSON string a line.
local function union(known, added)
  if added == '' or known == added then return known end
  local names, seen = {}, {}
  for _, text_of_names in ipairs({known, added}) do
    for _, name in ipairs(lines(text_of_names)) do
      if not seen[name] then
        seen[name] = true
        names[#names + 1] = name
      end
    end
  end
  return table.concat(names, '\n')
end

-- A history is a line for each failure: number, time, error as JSON.
local function with_failure(history, number, at, failure)
  local failures = lines(history)
  failures[#failures + 1] = string.format('%d %s %s', number, text(at), failure)
  return table.concat(failures, '\n', math.max(1, #failures - MOST_FAILURES + 1))
end

-- 16 digits sort as text in the order of their numbers.
local function next_number()
  local name = base .. ':s'
  local number = redis.call('INCR', name)
  has_counted = true
  return string.format('%016d', number)
end

local function key_of(member)
  return string.sub(member, 18)
end

-- The usual case, and cheaper to find out at once than record by record.
local function is_new(key)
  return redis.call('EXISTS', base .. ':d:' .. key, base .. ':a:' .. key, base .. ':i:' .. key,
    base .. ':l:' .. key) == 0
end

local function is_done(key)
  local done = redis.call('GET', base .. ':d:' .. key)
  return done and tonumber(string.match(done, '^%S+')) > now
end

local function attempt_of(key)
  local found = redis.call('HMGET', base .. ':a:' .. key,
    'token', 'until', 'lease', 'attempt', 'finished', 'history')
  if not found[4] then return nil end
  return {
    token = found[1], ends = tonumber(found[2]), lease = tonumber(found[3]),
    attempt = tonumber(found[4]), finished = found[5] or '', history = found[6] or '',
  }
end

local function is_live(attempt)
  return attempt ~= nil and now < attempt.ends
end

local function is_in_inbox(key)
  return redis.call('EXISTS', base .. ':i:' .. key) == 1
end

local function set_live(key, ends)
  redis.call('ZADD', base .. ':v', text(ends), key)
  latest_end = math.max(latest_end or ends, ends)
end

-- A lease cannot end later than it lasts, unless the clock was set back: then it may also live again
-- after it was taken from the list of live ones.
local function cap(key, attempt)
  if attempt.ends > now + attempt.lease then
    attempt.ends = now + attempt.lease
    redis.call('HSET', base .. ':a:' .. key, 'until', text(attempt.ends))
  end
  set_live(key, attempt.ends)
end

-- The record of attempts lasts its retention from the grant on, and as long as the claim.
local function keep_record(key, seconds)
  local name, wanted = base .. ':a:' .. key, milliseconds(seconds)
  local left = redis.call('PTTL', name)
  if left >= 0 and left < tonumber(wanted) then redis.call('PEXPIRE', name, wanted) end
end

local function grant(key, known, token, lease, in_inbox)
  local count, finished, history = 1, '', ''
  if known then
    count, finished, history = known.attempt + 1, known.finished, known.history
    if known.token then
      history = with_failure(history, known.attempt, known.ends, INTERRUPTED)
    end
  end
  local name = base .. ':a:' .. key
  redis.call('HSET', name, 'token', token, 'until', text(now + lease), 'lease', text(lease),
    'attempt', count, 'finished', finished, 'history', history, 'expires', text(now + retention))
  if not in_inbox then
    redis.call('PEXPIRE', name, milliseconds(math.max(retention, lease)))
  elseif known then
    redis.call('PERSIST', name)
  end
  set_live(key, now + lease)
  return count, finished
end

local function owned(key, token)
  local attempt = attempt_of(key)
  return attempt and attempt.token == token and attempt or nil
end

-- With a full memory the server refuses to write more, but not once a script has begun to delete.
-- What was accepted can then still be finished; only what is new is refused.
local function pass_when_full()
  redis.call('DEL', base .. ':t')
end

-- A settling call whose reply was lost is repeated with the same nonce: it was this call that did it.
local function repeated(kind, key, nonce)
  return redis.call('HGET', base .. kind .. key, 'settled') == nonce and HELD or LOST
end

local function end_claim(key, finished, history, nonce)
  local name = base .. ':a:' .. key
  redis.call('HDEL', name, 'token')
  redis.call('HSET', name, 'until', '0', 'finished', finished, 'history', history,
    'settled', nonce)
  redis.call('ZREM', base .. ':v', key)
end

local function forget_attempt(key)
  redis.call('DEL', base .. ':a:' .. key)
  redis.call('ZREM', base .. ':v', key)
end
