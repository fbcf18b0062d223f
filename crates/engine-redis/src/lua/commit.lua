-- Commits transactions, one after the other. The request says whether it only removes; then, of each transaction, what it
-- touches, the inodes it changes, how many guards and effects it has, and these, each an item. The operations' ids are
-- the further arguments. The answer to a transaction is 1, seq and those inodes; 2 and seq if it repeats an earlier one;
-- 0, seq and an answer to each guard's want if a guard does not hold.
--
-- A script is not rolled back, so none may fail after its first write. Where writing is refused, by a replica or because
-- the disk or the memory is full, it is the first write that is refused, and then nothing has happened. Redis asks for
-- memory only at the first write, and only of commands that may take some: so who only removes begins with another one.
--
-- Lua makes a function anew each time that a script comes to it. So what is seldom needed is made only when it is.
local floor, ceil = math.floor, math.ceil
local WORD = 4294967296
if number() == 1 then call('DEL', P .. 'none') end
local last = tonumber(seq)
local first = last
-- Nodes to be written, entries that are known to be absent, and operations and changes to be noted.
local stale, absent, noted, touched, applied = {}, {}, {}, {}, {}
local out = {}

local function text(number) return string.format('%.0f', number) end

local function less(a, b)
  local ah, al = fields('>I4I4', a)
  local bh, bl = fields('>I4I4', b)
  return ah < bh or ah == bh and al < bl
end

-- Adds the signed number high * 2^32 + low; stays between 0 and 2^64 - 1.
local function add(a, high, low)
  local ah, al = fields('>I4I4', a)
  al, ah = al + low, ah + high
  if al >= WORD then al, ah = al - WORD, ah + 1 end
  if ah < 0 then return ZERO end
  if ah >= WORD then return string.rep('\255', 8) end
  return pack('>I4I4', ah, al)
end

-- Adds to what the volume holds, or with sign -1 takes from it: a node's blocks of 4096 bytes, which only a regular
-- file has.
local function use_blocks(sign, found)
  local high, low = fields('>I4I4', found, 16)
  if byte(found, 1) == 8 and high + low > 0 then
    local delta = sign * (high * 1048576 + ceil(low / 4096))
    blocks = add(blocks, floor(delta / WORD), delta % WORD)
  end
end

local function put(map, key, new)
  local old, now = member(map, key), key .. '\0' .. new
  if old ~= now then
    if old then call('ZREM', map, old) end
    call('ZADD', map, '0', now)
  end
end

local function drop(map, key)
  local old = member(map, key)
  if old then call('ZREM', map, old) end
end

-- The node is to be written, or removed if it is false.
local function change(ino, found)
  nodes[ino], stale[ino] = found, true
end

-- The rows in a string, each behind its length.
local function split(all)
  local out, from = {}, 1
  while from <= #all do out[#out + 1], from = fields('>I4c0', all, from) end
  return out
end

local function holds(kind, a, b, c)
  if kind == 'access' then
    local found = node(a)
    return found and sub(found, 56, 63) == b
  elseif kind == 'no_edge' then
    local key = P .. 'dir:' .. a
    local free = not member(key, b)
    if free then absent[key .. b] = true end
    return free
  elseif kind == 'edge' then
    local edge = value(P .. 'dir:' .. a, b)
    return edge and sub(edge, 2) == c
  elseif kind == 'no_node' then
    return not node(a)
  elseif kind == 'links' then
    local found = node(a)
    return found and sub(found, 12, 15) == b
  elseif kind == 'size' then
    local found = node(a)
    return found and sub(found, 16, 23) == b
  elseif kind == 'parent' then
    local found = node(a)
    return found and sub(found, 48, 55) == b
  elseif kind == 'empty' then
    return call('EXISTS', P .. 'dir:' .. a) == 0
  elseif kind == 'room' then
    return less(inodes, a) and less(blocks, b)
  elseif kind == 'rows' then
    local found = rows(a, b)
    for n, row in ipairs(split(c)) do
      if not found[n] or sub(found[n], 17) ~= row then return false end
    end
    return true
  elseif kind == 'xattr' then
    return call('HEXISTS', P .. 'xattrs:' .. a, b) == tonumber(c)
  elseif kind == 'locks' then
    return node(a) and (value(P .. 'locks', a) or '') == b
  elseif kind == 'setting' then
    return call('HGET', P .. 'settings', a) == b
  elseif kind == 'no_setting' then
    return not call('HGET', P .. 'settings', a)
  elseif kind == 'counter' then
    return (call('HGET', P .. 'counters', a) or ZERO) == b
  end
  error('unknown guard ' .. tostring(kind))
end

-- A function that applies what is not a create's: `apply` makes it when it is needed.
local function seldom()
  -- A row is gone. What it referred to becomes garbage unless another row refers to it.
  local function release(row)
    if byte(row, 1) ~= 2 then return end
    local slice = sub(row, 10, 17)
    local others = value(P .. 'shared', slice)
    if not others then
      put(P .. 'garbage', slice, sub(row, 18, 21))
    else
      local left = add(others, -1, WORD - 1)
      if left == ZERO then drop(P .. 'shared', slice) else put(P .. 'shared', slice, left) end
    end
  end

  local function drop_rows(key, from, to)
    for _, row in ipairs(call('ZRANGEBYLEX', key, from, to)) do release(sub(row, 17)) end
    call('ZREMRANGEBYLEX', key, from, to)
  end

  return function(kind, a, b, c, d)
    if kind == 'drop_node' then
      local found = node(a)
      if found then
        inodes = add(inodes, -1, WORD - 1)
        use_blocks(-1, found)
        change(a, false)
        drop(P .. 'locks', a)
        call('DEL', P .. 'xattrs:' .. a, P .. 'symlink:' .. a)
        if call('EXISTS', P .. 'rows:' .. a) == 1 then drop_rows(P .. 'rows:' .. a, '-', '+') end
      end
    elseif kind == 'extend' or kind == 'size' then
      local found = node(a)
      if found and (kind == 'size' or less(sub(found, 16, 23), b)) then
        use_blocks(-1, found)
        found = sub(found, 1, 15) .. b .. sub(found, 24)
        use_blocks(1, found)
        change(a, found)
      end
    elseif kind == 'access' then
      local found = node(a)
      if found then
        -- A device's number comes last, behind the ACLs if there are some.
        local device = #found % 32 == 3 and sub(found, -4) or ''
        local rev = add(sub(found, 56, 63), 0, 1)
        change(a, sub(found, 1, 1) .. b .. sub(found, 12, 55) .. rev .. c .. device)
      end
    elseif kind == 'parent' then
      local found = node(a)
      if found then change(a, sub(found, 1, 47) .. b .. sub(found, 56)) end
    elseif kind == 'drop_slices' then
      drop_rows(P .. 'rows:' .. a, '[' .. b, '(' .. c)
    elseif kind == 'replace' then
      local key, found, new = P .. 'rows:' .. a, rows(a, b), split(d)
      local count = math.min(tonumber(c), #found)
      for n = 1, count do
        call('ZREM', key, found[n])
        if new[n] then call('ZADD', key, '0', sub(found[n], 1, 16) .. new[n]) end
      end
      for n = 1, count do release(sub(found[n], 17)) end
    elseif kind == 'share' then
      put(P .. 'shared', a, add(value(P .. 'shared', a) or ZERO, 0, 1))
    elseif kind == 'put_xattr' then
      if node(a) then call('HSET', P .. 'xattrs:' .. a, b, c) end
    elseif kind == 'drop_xattr' then
      call('HDEL', P .. 'xattrs:' .. a, b)
    elseif kind == 'symlink' then
      if node(a) then call('SET', P .. 'symlink:' .. a, b) end
    elseif kind == 'put_locks' then
      if node(a) then put(P .. 'locks', a, b) end
    elseif kind == 'put_acl' then
      if not member(P .. 'acls', a) then put(P .. 'acls', a, b) end
    elseif kind == 'put' then
      put(P .. a, b, c)
    elseif kind == 'drop' then
      drop(P .. a, b)
    elseif kind == 'put_orphan' then
      call('ZADD', P .. 'orphans', '0', a)
    elseif kind == 'drop_orphan' then
      call('ZREM', P .. 'orphans', a)
    elseif kind == 'set' then
      call('HSET', P .. a, b, c)
    elseif kind == 'usage' then
      -- The upper half of each carries the sign.
      inodes, blocks = add(inodes, fields('>i4I4', a)), add(blocks, fields('>i4I4', b))
    else
      error('unknown effect ' .. tostring(kind))
    end
  end
end

local others

local function apply(kind, a, b, c, d)
  if kind == 'put_node' then
    if node(a) then
      others = others or seldom()
      others('drop_node', a)
    end
    change(a, b)
    inodes = add(inodes, 0, 1)
    use_blocks(1, b)
  elseif kind == 'put_edge' then
    local key = P .. 'dir:' .. a
    if absent[key .. b] then
      absent[key .. b] = nil
      call('ZADD', key, '0', b .. '\0' .. c)
    else
      put(key, b, c)
    end
  elseif kind == 'drop_edge' then
    drop(P .. 'dir:' .. a, b)
  elseif kind == 'touch' then
    local found = node(a)
    if found then
      if d ~= '' and less(d, sub(found, 40, 47)) then d = '' end
      change(a, sub(found, 1, 23) .. (b ~= '' and b or sub(found, 24, 31)) .. (c ~= '' and c or sub(found, 32, 39))
        .. (d ~= '' and d or sub(found, 40, 47)) .. sub(found, 48))
    end
  elseif kind == 'links' then
    local found = node(a)
    if found then
      local links = fields('>I4', found, 12) + tonumber(b)
      links = links < 0 and 0 or links >= WORD and WORD - 1 or links
      change(a, sub(found, 1, 11) .. pack('>I4', links) .. sub(found, 16))
    end
  elseif kind == 'append' then
    if node(a) then
      local key = P .. 'rows:' .. a
      local newest = call('ZREVRANGEBYLEX', key, '(' .. b .. '\255', '[' .. b, 'LIMIT', '0', '1')[1]
      local number = newest and add(sub(newest, 9, 16), 0, 1) or ZERO
      call('ZADD', key, '0', b .. number .. c)
    end
  else
    others = others or seldom()
    others(kind, a, b, c, d)
  end
end

-- Writes the nodes that were changed, those of a hash together.
local function write_nodes()
  local hashes = {}
  for ino in pairs(stale) do
    local key, field = place(ino)
    local new = nodes[ino]
    if new then
      local hash = hashes[key]
      if not hash then
        hash = {key}
        hashes[key] = hash
      end
      hash[#hash + 1] = field
      hash[#hash + 1] = new
    elseif call('HDEL', key, field) == 1 and call('EXISTS', key) == 0 then
      call('ZREM', P .. 'nodes', sub(key, -8))
    end
  end
  for key, hash in pairs(hashes) do
    local added = call('HSET', unpack(hash))
    -- All that is in it is new, so the hash is.
    if added > 0 and call('HLEN', key) == added then call('ZADD', P .. 'nodes', '0', sub(key, -8)) end
  end
end

-- Tells who watches, and remembers the operations.
local function note()
  local oldest = last > 65536 and text(last - 65536) or '0'
  call('XADD', P .. 'changes', 'MINID', '~', oldest, text(last) .. '-0', unpack(touched))
  call('HSET', P .. 'ops', unpack(noted))
  touched, noted = {}, {}
end

-- A guard did not hold: the answers to all of them.
local function conflict(guards)
  local wants = {
    access = 'node', no_edge = 'entry', edge = 'entry', no_node = 'node', links = 'node', size = 'node',
    parent = 'node', empty = 'empty', room = 'usage', rows = 'slices', xattr = 'xattrs', locks = 'locks',
    setting = 'settings', no_setting = 'settings', counter = 'counter',
  }
  out[#out + 1] = 0
  out[#out + 1] = text(last)
  for _ = 1, guards do
    local kind, a, b = item()
    answer(out, wants[kind], a, b)
  end
end

local function skip(items)
  for _ = 1, items do item() end
end

local function commit(id, earlier)
  local touches, changed, guards, effects
  touches, changed, guards, effects, at = fields('>I4c0I4c0I4I4', request, at)
  if earlier then
    skip(guards + effects)
    out[#out + 1] = 2
    out[#out + 1] = earlier
    return
  end
  local first_guard = at
  for _ = 1, guards do
    if not holds(item()) then
      at = first_guard
      conflict(guards)
      return skip(effects)
    end
  end
  if effects > 0 then
    for _ = 1, effects do apply(item()) end
    last = last + 1
    noted[#noted + 1] = id
    noted[#noted + 1] = text(last)
    touched[#touched + 1] = sub(id, 1, 8)
    touched[#touched + 1] = touches
    applied[id] = text(last)
  end
  out[#out + 1] = 1
  out[#out + 1] = text(last)
  for from = 1, #changed, 8 do out[#out + 1] = node(sub(changed, from, from + 7)) end
  if #noted >= 1000 then note() end
end

local ids = {unpack(ARGV, 2)}
local earlier, before = call('HMGET', P .. 'ops', unpack(ids)), call('HMGET', P .. 'ops_before', unpack(ids))
for n, id in ipairs(ids) do commit(id, applied[id] or earlier[n] or before[n]) end
if last > first then
  write_nodes()
  call('HSET', P .. 'state', 'seq', text(last), 'inodes', inodes, 'blocks', blocks)
  if #noted > 0 then note() end
  -- Operations are forgotten that are at least 16,384 transactions and two minutes old, or a million transactions.
  if floor(last / 16384) > floor(first / 16384) then
    local now, since = call('TIME')[1], call('HGET', P .. 'ops', 'since')
    if since and (now - since >= 120 or call('HLEN', P .. 'ops') >= 1048576) then
      call('UNLINK', P .. 'ops_before')
      call('RENAME', P .. 'ops', P .. 'ops_before')
      since = false
    end
    if not since then call('HSET', P .. 'ops', 'since', now) end
  end
end
return out
