-- Makes an empty volume unless there is one. ARGV[1] is the version. Sequence numbers begin at the time in
-- milliseconds, so that they do not repeat the numbers of an earlier volume: a client of that volume finds a
-- gap.
local zero = string.rep('\0', 8)
if redis.call('EXISTS', KEYS[1] .. 'state') == 0 then
  local seq = string.format('%.0f', tonumber(redis.call('TIME')[1]) * 1000)
  redis.call('HSET', KEYS[1] .. 'state', 'seq', seq, 'inodes', zero, 'blocks', zero)
end
redis.call('SETNX', KEYS[1] .. 'schema', ARGV[1])
