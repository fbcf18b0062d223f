-- The last step of a wipe. It is a commit too; its entry in the stream tells watchers to start a new watch.
redis.call('HSET', KEYS[1] .. 'state', 'inodes', string.rep('\0', 8), 'blocks', string.rep('\0', 8))
redis.call('DEL', KEYS[1] .. 'settings')
local number = string.format('%.0f', redis.call('HINCRBY', KEYS[1] .. 'state', 'seq', 1))
redis.call('XADD', KEYS[1] .. 'changes', number .. '-0', 'wiped', '')
