-- The steps about the format of the shard's records; see stores/formats.py.

-- The call itself has compared the format, and the number of shards. Reply: how many records could not be read, and wait
-- for a person.
function ops.agree()
  return tostring(redis.call('SCARD', base .. ':b'))
end

-- Arguments: the new format. Reply: '' if the shard has the format now, else how many seconds ago a process called that
-- does not know it. The step must be the last of its call, since later steps would write the old format.
function ops.upgrade(arg)
  local wanted, patience = tonumber(arg[1]), OLD_SECONDS
  write_all()
  -- A running attempt extends its lease after a third of it, so its process was seen within the lease.
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', LIVE, '(' .. text(now), '+inf')) do
    local record = unfinished(key)
    if is_live(record) then patience = math.max(patience, record.lease + SEEN_SECONDS) end
  end
  local fields = redis.call('HGETALL', base .. ':m')
  for n = 1, #fields, 2 do
    local newest, at = tonumber(string.match(fields[n], '^seen:(%d+)$')), tonumber(fields[n + 1])
    if newest and newest < wanted and at > now - patience and at <= now then return text(now - at) end
  end
  redis.call('HSET', base .. ':m', 'format', arg[1])
  return ''
end
