-- Runs the steps in order. An error in one of them is its own answer, and no neighbour's.

local replies = {text(now)}
local at = 5
while at <= #ARGV do
  local step, count = ARGV[at], tonumber(ARGV[at + 1])
  local arg = {}
  for n = 1, count do arg[n] = ARGV[at + 1 + n] end
  at = at + 2 + count
  local succeeded, reply = pcall(ops[step], arg)
  if not succeeded then
    reply = {'!', type(reply) == 'table' and reply.err or tostring(reply)}
  end
  replies[#replies + 1] = reply
end

if latest_end then
  local live, wanted = base .. ':v', milliseconds(latest_end - now + 60)
  redis.call('ZREMRANGEBYSCORE', live, '-inf', text(now))
  if redis.call('PTTL', live) < tonumber(wanted) then redis.call('PEXPIRE', live, wanted) end
end
if has_counted then
  redis.call('PEXPIRE', base .. ':s', milliseconds(retention))
end
if ARGV[4] == '1' then
  -- Waiting covers what this connection has written, and what was written before: also a neighbour's
  -- record that was only read here, or one that an earlier try of this call has left.
  redis.call('SET', base .. ':t', text(now), 'PX', 60000)
end
for endpoint in pairs(to_wake) do
  -- Without the right to publish, workers find out when they look the next time.
  redis.pcall('PUBLISH', channel, endpoint)
end
return replies
