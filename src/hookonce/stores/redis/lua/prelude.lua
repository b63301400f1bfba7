-- What the steps share: the time, the names of keys, and the records behind them.
--
-- Everything of one event lies in one shard, and all keys of a shard begin with the same hash tag,
-- KEYS[1]. This file and its neighbours are joined to one script. ARGV is: the time ('' for the
-- server's own), the retention in seconds, the channel that wakes workers, '1' if the caller waits until
-- the call's writes are safe, and then for each step its name, the number of its arguments and the arguments.
--
-- Of an event <key>, with BASE for the hash tag:
--   BASE:a:<key>  string: its record, see below   expires, unless there is one of the next two
--   BASE:i:<key>  string: it is in the inbox, and this is its body             until done or dead
--   BASE:l:<key>  hash: its dead letter, or the delivery kept for one          until done
--   BASE:c:<key>  string: until when its gap counts as accepted                expires then
-- Of a key lock: see key_locks.lua.
-- Of an endpoint:
--   BASE:q:<endpoint>  zset: its inbox by the time due       BASE:o:<endpoint>  by the time enqueued
--   BASE:n:<endpoint>  hash: bytes in the inbox, and when it was last fetched from
--   BASE:x:<endpoint>  zset: its dead letters by the time buried; BASE:x of all endpoints
--   BASE:p:<endpoint>  zset: the applications that receive there by the time seen, in the first shard
--   BASE:f:<endpoint>  zset: the times in which types were ignored by their end, in the first shard
--   BASE:g:<endpoint>  string: somebody looks at its activity; BASE:h:<endpoint> list: what was told of it, and
--                      BASE:j:<endpoint> how many lines that were in all; in the first shard
-- Of the shard: BASE:e endpoints that have an inbox, BASE:v live claims by their end, BASE:w workers
-- by the time seen, BASE:y their endpoints, BASE:r:<worker> list: the number and token of its last fetch, and the
-- keys that it fetched, BASE:s a counter that breaks ties, BASE:t a key that is written to wait for its durability.
--
-- Every event that is known has one packed record, so that the usual claim is one SET NX, the usual enqueue
-- a GET and an MSET, and a completion one SET GET: every further command costs the server as much again.
--
-- What a step answers, and what becomes of the event, is written in life.py; the rows of its table
-- that a line stands for are named beside it, as FREE.claim.
--
-- A step reads and checks before it writes, so that an error leaves nothing half done.

local base, now, retention, channel = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end

-- MOST_FAILURES, INTERRUPTED and WORKER_SECONDS stand before this file, as they are in Python.

local ops = {}
local HELD, LOST = 'H', 'L'

-- Steps set these; the end of the call acts on them once.
local latest_end = nil
local to_wake = {}

-- Lua's own conversion would cut a time to 14 digits. Most steps of a call write the same few times
-- and expiries, so that each is converted once.
local texts = {}
local function text(number)
  local known = texts[number]
  if not known then
    if number ~= number then return 'nan' end -- NaN cannot be an index of a table
    known = string.format('%.17g', number)
    texts[number] = known
  end
  return known
end

local expiries = {}
local function milliseconds(seconds)
  local known = expiries[seconds]
  if not known then
    if seconds ~= seconds then return '1' end
    -- A server refuses what does not fit into its numbers.
    known = string.format('%.0f', math.max(1, math.min(math.ceil(seconds * 1000), 1e15)))
    expiries[seconds] = known
  end
  return known
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
  if known == '' then return added end
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

local function without(names, removed)
  if names == '' or removed == '' then return names end
  local rest, is_removed = {}, {}
  for _, name in ipairs(lines(removed)) do
    is_removed[name] = true
  end
  for _, name in ipairs(lines(names)) do
    if not is_removed[name] then rest[#rest + 1] = name end
  end
  return table.concat(rest, '\n')
end

-- A history is a line for each failure: number, time, error as JSON; '' is none.
local function with_failure(history, number, at, failure)
  if failure == '' then return history end
  local failures = lines(history)
  failures[#failures + 1] = string.format('%d %s %s', number, text(at), failure)
  return table.concat(failures, '\n', math.max(1, #failures - MOST_FAILURES + 1))
end

-- 16 digits sort as text in the order of their numbers. A step needs one at the most, and there are
-- fewer steps than arguments.
local last_number
local function next_number()
  if not last_number then
    local name = base .. ':s'
    last_number = redis.call('INCRBY', name, #ARGV) - #ARGV
    redis.call('PEXPIRE', name, milliseconds(retention))
  end
  last_number = last_number + 1
  return string.format('%016d', last_number)
end

local function key_of(member)
  return string.sub(member, 18)
end

-- With a full memory the server refuses writes, except in a script that has deleted a key first. So this lets
-- accepted events be finished; only new events are refused.
local passes = false
local function pass_when_full()
  if not passes then redis.call('DEL', base .. ':t') end
  passes = true
end
