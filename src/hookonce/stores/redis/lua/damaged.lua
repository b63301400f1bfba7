-- Records that cannot be read, because their bytes are damaged or of an unknown format.

-- Makes the event a dead letter with the bytes of its record, and with the body that the inbox has. A claim and an
-- enqueue are refused until a person has replayed or discarded it: nobody knows whether the event was handled.
set_aside = function(key, stored)
  pass_when_full()
  local colon = string.find(key, ':', 1, true)
  local record, body = new_record(), body_of(key) or ''
  write_dead_letter(key, record, 'damaged',
    {string.sub(key, 1, colon - 1), string.sub(key, colon + 1), '', text(now), body}, 'damaged', '')
  redis.call('HSET', base .. ':l:' .. key, 'record', stored)
  redis.call('SADD', base .. ':b', key)
  write_record(key, record)
  set_aside_now[#set_aside_now + 1] = key
  return record
end
