-- What a person or a probe asks for, and upkeep.

local function is_of(key, endpoint)
  return endpoint == '' or string.sub(key, 1, #endpoint + 1) == endpoint .. ':'
end

-- endpoint or '': in flight, dead, depth, bytes, received first or '', workers
function ops.stats(arg)
  local wanted = arg[1]
  local in_flight, hidden = 0, 0
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', base .. ':v', '(' .. text(now), '+inf')) do
    if is_of(key, wanted) then
      in_flight = in_flight + 1
      if kept_flag(key) == '1' then hidden = hidden + 1 end
    end
  end
  local dead = redis.call('ZCARD', wanted == '' and base .. ':x' or base .. ':x:' .. wanted)
  local endpoints = wanted == '' and redis.call('SMEMBERS', base .. ':e') or {wanted}
  local depth, bytes, oldest = 0, 0, nil
  for _, endpoint in ipairs(endpoints) do
    depth = depth + redis.call('ZCARD', base .. ':q:' .. endpoint)
    bytes = bytes + (tonumber(redis.call('HGET', base .. ':n:' .. endpoint, 'bytes')) or 0)
    local first = redis.call('ZRANGE', base .. ':o:' .. endpoint, 0, 0)[1]
    if first then
      local received = tonumber(entry_of(key_of(first)).received)
      oldest = math.min(oldest or received, received)
    end
  end
  local workers = {}
  local since = text(now - WORKER_SECONDS)
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', base .. ':w', '(' .. since, text(now))) do
    if wanted == '' or redis.call('HGET', base .. ':y', worker) == wanted then
      workers[#workers + 1] = worker
    end
  end
  return {tostring(in_flight), tostring(dead - hidden), tostring(depth), text(bytes),
    oldest and text(oldest) or '', workers}
end

-- The server forgets by itself what its own time says is over. With a clock of the caller's,
-- records are looked at one by one. cursor or ''
function ops.sweep(arg)
  redis.call('ZREMRANGEBYSCORE', base .. ':v', '-inf', text(now))
  if ARGV[1] == '' then return {'0', '0'} end
  local removed = 0
  local page = redis.call('SCAN', arg[1], 'MATCH', base .. ':[da]:*', 'COUNT', 1000)
  for _, name in ipairs(page[2]) do
    local kind, key = string.sub(name, #base + 2, #base + 2), string.sub(name, #base + 4)
    local is_over
    if kind == 'd' then
      is_over = redis.call('EXISTS', name) == 1 and not is_done(key)
    else
      local expires = redis.call('HGET', name, 'expires')
      is_over = expires and tonumber(expires) <= now and not is_live(attempt_of(key))
        and not is_in_inbox(key)
    end
    if is_over then removed = removed + redis.call('DEL', name) end
  end
  return {page[1], tostring(removed)}
end
