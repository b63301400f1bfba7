-- Runs the steps in order. An error in a step is the reply to that step only.

local replies = {text(now)}
local at = 8
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
  -- The caller waits until this connection's last write is durable; all earlier writes of the server are durable then
  -- too. A call that only reads needs a write to wait for: another connection, or an earlier try of the same call, may
  -- have just written the record that was read.
  pass_when_full()
  redis.call('SET', base .. ':t', text(now), 'PX', 60000)
end
for endpoint in pairs(to_wake) do
  -- `pcall`, since a client may lack the permission to publish; workers then find the event at their next poll.
  redis.pcall('PUBLISH', channel, endpoint)
end
return replies
