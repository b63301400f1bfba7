-- Runs the steps in order. An error in one of them is its own answer, and no neighbour's.

local replies = {text(now)}
local at = 5
while at <= #ARGV do
  local step, last = ARGV[at], at + 1 + tonumber(ARGV[at + 1])
  local succeeded, reply = pcall(ops[step], {unpack(ARGV, at + 2, last)})
  at = last + 1
  if not succeeded then
    reply = {'!', type(reply) == 'table' and reply.err or tostring(reply)}
  end
  replies[#replies + 1] = reply
end

write_all()
if latest_end then
  local wanted = milliseconds(latest_end - now + 60)
  redis.call('ZREMRANGEBYSCORE', LIVE, '-inf', text(now))
  if redis.call('PTTL', LIVE) < tonumber(wanted) then redis.call('PEXPIRE', LIVE, wanted) end
end
if ARGV[4] == '1' then
  -- Waiting covers what this connection has written, and what was written before: also a neighbour's
  -- record that was only read here, or one that an earlier try of this call has left.
  pass_when_full()
  redis.call('SET', base .. ':t', text(now), 'PX', 60000)
end
for endpoint in pairs(to_wake) do
  -- Without the right to publish, workers find out when they look the next time.
  redis.pcall('PUBLISH', channel, endpoint)
end
return replies
