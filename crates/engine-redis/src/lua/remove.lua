-- Removes the keys that a wipe keeps, unless there is a volume again.
local P = KEYS[1]
if redis.call('EXISTS', P .. 'settings') == 0 then
  redis.call('DEL', P .. 'schema', P .. 'state', P .. 'changes', P .. 'synced')
end
