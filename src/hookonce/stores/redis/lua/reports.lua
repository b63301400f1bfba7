-- Counts and activity for operators and probes, and the removal of expired records.

local function is_of(key, endpoint)
  return endpoint == '' or string.sub(key, 1, #endpoint + 1) == endpoint .. ':'
end

-- Arguments: endpoint or ''. Reply: the numbers of events in flight, dead, kept and in the inbox, the bytes in the inbox,
-- the arrival of its first event or '', and the workers.
function ops.stats(arg)
  local wanted = arg[1]
  write_all()
  local in_flight, hidden = 0, 0
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', LIVE, '(' .. text(now), '+inf')) do
    if is_of(key, wanted) then
      in_flight = in_flight + 1
      if is_hidden(record_of(key) or {}) then hidden = hidden + 1 end
    end
  end
  local dead_letters = wanted == '' and base .. ':x' or base .. ':x:' .. wanted
  local dead, kept = redis.call('ZCARD', dead_letters), 0
  -- A member whose time is in the future is a kept delivery, or was buried before the clock was set back.
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', dead_letters, '(' .. text(now), '+inf')) do
    local record = record_of(key_of(member)) or {}
    if sender_retries(record) and not is_live(record) then kept = kept + 1 end
  end
  local endpoints = wanted == '' and redis.call('SMEMBERS', base .. ':e') or {wanted}
  local depth, bytes, oldest = 0, 0, nil
  for _, endpoint in ipairs(endpoints) do
    local counts = counts_of(endpoint)
    depth, bytes = depth + counts.depth, bytes + counts.bytes
    local first = redis.call('ZRANGE', base .. ':o:' .. endpoint, 0, 0)[1]
    if first then
      local entry = entry_of(key_of(first))
      local received = entry and tonumber(entry.received)
      if received then oldest = math.min(oldest or received, received) end
    end
  end
  local workers = {}
  local since = text(now - WORKER_SECONDS)
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', base .. ':w', '(' .. since, text(now))) do
    if wanted == '' or redis.call('HGET', base .. ':y', worker) == wanted then
      workers[#workers + 1] = worker
    end
  end
  return {tostring(in_flight), tostring(dead - hidden - kept), tostring(kept), tostring(depth), text(bytes),
    oldest and text(oldest) or '', workers}
end

-- Arguments: keys of events. Reply: the state of each event, '' for an unknown event.
function ops.known(arg)
  local found = {}
  for number, key in ipairs(arg) do
    local record, known = record_of(key), ''
    if record and record.done_until then
      known = 'done'
    elseif is_visible(record) and not sender_retries(record) then
      known = 'dead'
    elseif record and record.endpoint then
      known = 'waiting'
    elseif is_live(record) then
      known = 'in_flight'
    elseif record and (record.dead_letter or record.attempt > 0 and now < record.expires) then
      known = 'failed'
    end
    found[number] = known
  end
  return found
end

-- Arguments: endpoint, how many seconds an application is remembered, how many applications are remembered, the
-- application to register or ''. Reply: the applications, each with the time of its last registration.
function ops.register(arg)
  local name, own = base .. ':p:' .. arg[1], arg[4]
  local since = text(now - tonumber(arg[2]))
  if own ~= '' then
    redis.call('ZADD', name, text(now), own)
    redis.call('ZREMRANGEBYSCORE', name, '-inf', since)
    redis.call('ZREMRANGEBYRANK', name, 0, -1 - tonumber(arg[3]))
    redis.call('PEXPIRE', name, milliseconds(tonumber(arg[2])))
  end
  return redis.call('ZRANGEBYSCORE', name, '(' .. since, '+inf', 'WITHSCORES')
end

-- Arguments: endpoint, how many seconds an operator counts as watching, how many lines are kept, the lines.
-- Reply: '1' if an operator follows, else '0'.
function ops.publish(arg)
  local endpoint, lines = arg[1], base .. ':h:' .. arg[1]
  if redis.call('EXISTS', base .. ':g:' .. endpoint) == 0 then return '0' end
  if #arg > 3 then
    redis.call('RPUSH', lines, unpack(arg, 4))
    redis.call('LTRIM', lines, -tonumber(arg[3]), -1)
    redis.call('INCRBY', base .. ':j:' .. endpoint, #arg - 3)
    redis.call('PEXPIRE', lines, milliseconds(6 * tonumber(arg[2])))
    redis.call('PEXPIRE', base .. ':j:' .. endpoint, milliseconds(6 * tonumber(arg[2])))
  end
  return '1'
end

-- Arguments: endpoint, how many seconds an operator counts as watching, a cursor or ''.
-- Reply: the cursor after the last line, and the lines after the given cursor.
function ops.follow(arg)
  local endpoint, place = arg[1], tonumber(arg[3])
  redis.call('SET', base .. ':g:' .. endpoint, '', 'PX', milliseconds(tonumber(arg[2])))
  local last = tonumber(redis.call('GET', base .. ':j:' .. endpoint) or '0')
  if not place then return {tostring(last), {}} end
  if place > last then place = 0 end
  if place == last then return {tostring(last), {}} end
  return {tostring(last), redis.call('LRANGE', base .. ':h:' .. endpoint, place - last, -1)}
end

-- Arguments: endpoint, worker, how many reports are kept, the report of the worker or '' to remove it.
function ops.report_worker(arg)
  local seen, reports = base .. ':u', base .. ':d'
  local member = arg[1] .. ':' .. arg[2]
  if arg[4] == '' then
    redis.call('ZREM', seen, member)
    redis.call('HDEL', reports, member)
    return '1'
  end
  redis.call('ZADD', seen, text(now), member)
  redis.call('HSET', reports, member, arg[4])
  local silent = redis.call('ZRANGEBYSCORE', seen, '-inf', text(now - WORKER_SECONDS))
  if #silent == 0 then silent = redis.call('ZRANGE', seen, 0, -1 - tonumber(arg[3])) end
  for _, one in ipairs(silent) do
    redis.call('ZREM', seen, one)
    redis.call('HDEL', reports, one)
  end
  redis.call('PEXPIRE', seen, milliseconds(2 * WORKER_SECONDS))
  redis.call('PEXPIRE', reports, milliseconds(2 * WORKER_SECONDS))
  return '1'
end

-- Arguments: endpoint or ''. Reply: for each worker endpoint and name, the age of its report in seconds, the report.
function ops.workers(arg)
  local found, since = {}, text(now - WORKER_SECONDS)
  local rows = redis.call('ZRANGEBYSCORE', base .. ':u', '(' .. since, text(now), 'WITHSCORES')
  for at = 1, #rows, 2 do
    local report = is_of(rows[at], arg[1]) and redis.call('HGET', base .. ':d', rows[at])
    if report then
      found[#found + 1] = rows[at]
      found[#found + 1] = text(now - tonumber(rows[at + 1]))
      found[#found + 1] = report
    end
  end
  return found
end

-- The server expires records by its own clock. If the caller has its own clock, this step searches for expired records.
-- Arguments: cursor. Reply: the next cursor ('0' at the end), and how many records were removed.
function ops.sweep(arg)
  write_all()
  redis.call('ZREMRANGEBYSCORE', LIVE, '-inf', text(now))
  if ARGV[1] == '' then return {'0', '0'} end
  local removed = 0
  local page = redis.call('SCAN', arg[1], 'MATCH', base .. ':[ack]:*', 'COUNT', 1000)
  local records, acceptances = name_of(''), accepted_name('')
  for _, name in ipairs(page[2]) do
    local is_over
    if string.sub(name, 1, #records) == records then
      local record = unpacked(redis.call('GET', name))
      if record == false then
        is_over = false
      elseif record and record.done_until then
        is_over = record.done_until <= now
      elseif record then
        is_over = math.max(record.expires, record.ends) <= now and not record.endpoint and not record.dead_letter
      end
    elseif string.sub(name, 1, #acceptances) == acceptances then
      is_over = not is_accepted(name)
    else
      local key_lock = key_lock_of(string.sub(name, #records + 1))
      is_over = key_lock.ends <= now and not key_lock.created
    end
    if is_over then removed = removed + redis.call('DEL', name) end
  end
  return {page[1], tostring(removed)}
end
