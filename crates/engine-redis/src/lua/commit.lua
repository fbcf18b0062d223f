-- Commits transactions, one after the other. The request is whether it only removes; the hashes whose nodes it looks at;
-- then, of each transaction in a string, what it touches, the inodes it changes, how many guards and effects it has, and
-- these. The operations' ids are the further arguments. The answer to a transaction is 1, seq and those inodes; 2 and seq
-- if it repeats an earlier one; 0, seq and an answer to each guard's want if a guard does not hold.
--
-- A script is not rolled back, so none may fail after its first write. Where writing is refused, by a replica or because
-- the disk or the memory is full, it is the first write that is refused, and then nothing has happened. Redis asks for
-- memory only at the first write, and only of commands that may take some: so who only removes begins with another one.
--
-- This is what a server spends most of its time on, so what a create needs, by far the most frequent change, comes first
-- everywhere. Lua makes each function anew when the script comes to it, with a reference to each variable outside of it:
-- so what happens in one place only is in the place, and what is seldom needed is made when it is.
local floor, ceil = math.floor, math.ceil
local WORD = 4294967296
-- What is to be added to inodes and blocks.
local more_inodes, more_blocks = 0, 0

local function text(number) return string.format('%d', number) end

-- Whether a number is less than that which stands in a string from there on.
local function less(a, b, from)
  local ah, al = fields('>I4I4', a)
  local bh, bl = fields('>I4I4', b, from)
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

local function settle()
  inodes = add(inodes, floor(more_inodes / WORD), more_inodes % WORD)
  blocks = add(blocks, floor(more_blocks / WORD), more_blocks % WORD)
  more_inodes, more_blocks = 0, 0
end

-- Adds to what the volume holds, or with sign -1 takes from it: a node's blocks of 4096 bytes, which only a regular
-- file has.
local function use_blocks(sign, found)
  if byte(found, 1) == 8 and sub(found, 16, 23) ~= ZERO then
    local high, low = fields('>I4I4', found, 16)
    more_blocks = more_blocks + sign * (high * 1048576 + ceil(low / 4096))
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

-- By name, an entry as this script has found or left it, and in which directory.
local entries, parents = {}, {}

local function entry(dir, name)
  if parents[name] ~= dir then
    parents[name], entries[name] = dir, member(P .. 'dir:' .. dir, name) or false
  end
  return entries[name]
end

local function put_entry(dir, name, new)
  local old = entry(dir, name)
  if old ~= new then
    if old then call('ZREM', P .. 'dir:' .. dir, old) end
    if new then call('ZADD', P .. 'dir:' .. dir, '0', new) end
    entries[name] = new
  end
end

-- The rows in a string, each behind its length.
local function split(all)
  local found, from = {}, 1
  while from <= #all do found[#found + 1], from = fields('>I4c0', all, from) end
  return found
end

-- The guard or effect that was read last.
local kind, a, b, c, d

-- Reads a guard. Whether it holds.
local function holds()
  kind, at = sub(request, at, at + 3), at + 4
  if kind == 'same' then
    a, b, c, at = fields('>c8BI4c0', request, at)
    local found = nodes[a]
    return found and sub(found, b, b + #c - 1) == c
  elseif kind == 'free' then
    a, b, at = fields('>c8I4c0', request, at)
    if parents[b] ~= a then
      -- Looked for from the end on, for names often come in order.
      local found = call('ZREVRANGEBYLEX', P .. 'dir:' .. a, '(' .. b .. '\1', '[' .. b .. '\0', 'LIMIT', '0', '1')
      parents[b], entries[b] = a, found[1] or false
    end
    return not entries[b]
  elseif kind == 'edge' then
    a, b, c, at = fields('>c8I4c0c8', request, at)
    local found = entry(a, b)
    return found and sub(found, -8) == c
  elseif kind == 'none' then
    a, at = fields('c8', request, at)
    return not nodes[a]
  elseif kind == 'void' then
    a, at = fields('c8', request, at)
    return call('EXISTS', P .. 'dir:' .. a) == 0
  elseif kind == 'room' then
    a, b, at = fields('c8c8', request, at)
    settle()
    return less(inodes, a, 1) and less(blocks, b, 1)
  elseif kind == 'rows' then
    a, b, c, at = fields('>c8c8I4c0', request, at)
    local found = rows(a, b)
    for n, row in ipairs(split(c)) do
      if not found[n] or sub(found[n], 17) ~= row then return false end
    end
    return true
  elseif kind == 'attr' then
    a, b, c, at = fields('>c8I4c0I4', request, at)
    return call('HEXISTS', P .. 'xattrs:' .. a, b) == c
  elseif kind == 'lock' then
    a, b, at = fields('>c8I4c0', request, at)
    return node(a) and (value(P .. 'locks', a) or '') == b
  elseif kind == 'sett' then
    a, b, at = fields('>I4c0I4c0', request, at)
    return call('HGET', P .. 'settings', a) == b
  elseif kind == 'nset' then
    a, at = fields('>I4c0', request, at)
    return not call('HGET', P .. 'settings', a)
  elseif kind == 'cntr' then
    a, b, at = fields('>I4c0c8', request, at)
    return (call('HGET', P .. 'counters', a) or ZERO) == b
  end
  error('unknown guard ' .. kind)
end

-- A function that reads the rest of an effect that is not a create's, and applies it: `apply` makes it when it is needed.
local function seldom()
  -- A row is gone. What it referred to becomes garbage unless another row refers to it.
  local function release(row)
    if sub(row, 9, 9) ~= 'b' then return end
    local slice = sub(row, 10, 17)
    local others = value(P .. 'shared', slice)
    if not others then
      put(P .. 'garbage', slice, sub(row, 22, 25))
    else
      local left = add(others, -1, WORD - 1)
      if left == ZERO then drop(P .. 'shared', slice) else put(P .. 'shared', slice, left) end
    end
  end

  local function drop_rows(key, from, to)
    for _, row in ipairs(call('ZRANGEBYLEX', key, from, to)) do release(sub(row, 17)) end
    call('ZREMRANGEBYLEX', key, from, to)
  end

  local function drop_node(ino)
    local found = node(ino)
    if found then
      more_inodes = more_inodes - 1
      use_blocks(-1, found)
      nodes[ino] = false
      drop(P .. 'locks', ino)
      call('DEL', P .. 'xattrs:' .. ino, P .. 'symlink:' .. ino)
      if call('EXISTS', P .. 'rows:' .. ino) == 1 then drop_rows(P .. 'rows:' .. ino, '-', '+') end
    end
  end

  local function apply()
    if kind == 'gone' then
      a, at = fields('c8', request, at)
      drop_node(a)
    elseif kind == 'grow' or kind == 'size' then
      a, b, at = fields('c8c8', request, at)
      local found = node(a)
      if found and (kind == 'size' or less(sub(found, 16, 23), b, 1)) then
        use_blocks(-1, found)
        found = sub(found, 1, 15) .. b .. sub(found, 24)
        use_blocks(1, found)
        nodes[a] = found
      end
    elseif kind == 'perm' then
      a, b, c, at = fields('>c8I4c0I4c0', request, at)
      local found = node(a)
      if found then
        -- A device's number comes last, behind the ACLs if there are some.
        local device = #found % 32 == 3 and sub(found, -4) or ''
        local rev = add(sub(found, 56, 63), 0, 1)
        nodes[a] = sub(found, 1, 1) .. b .. sub(found, 12, 55) .. rev .. c .. device
      end
    elseif kind == 'home' then
      a, b, at = fields('c8c8', request, at)
      local found = node(a)
      if found then nodes[a] = sub(found, 1, 47) .. b .. sub(found, 56) end
    elseif kind == 'trim' then
      a, b, c, at = fields('c8c8c8', request, at)
      drop_rows(P .. 'rows:' .. a, '[' .. b, '(' .. c)
    elseif kind == 'swap' then
      a, b, c, d, at = fields('>c8c8I4I4c0', request, at)
      local key, found, new = P .. 'rows:' .. a, rows(a, b), split(d)
      local count = math.min(c, #found)
      for n = 1, count do
        call('ZREM', key, found[n])
        if new[n] then call('ZADD', key, '0', sub(found[n], 1, 16) .. new[n]) end
      end
      for n = 1, count do release(sub(found[n], 17)) end
    elseif kind == 'refs' then
      a, at = fields('c8', request, at)
      put(P .. 'shared', a, add(value(P .. 'shared', a) or ZERO, 0, 1))
    elseif kind == 'attr' then
      a, b, c, at = fields('>c8I4c0I4c0', request, at)
      if node(a) then call('HSET', P .. 'xattrs:' .. a, b, c) end
    elseif kind == 'noat' then
      a, b, at = fields('>c8I4c0', request, at)
      call('HDEL', P .. 'xattrs:' .. a, b)
    elseif kind == 'path' then
      a, b, at = fields('>c8I4c0', request, at)
      if node(a) then call('SET', P .. 'symlink:' .. a, b) end
    elseif kind == 'lock' then
      a, b, at = fields('>c8I4c0', request, at)
      if node(a) then put(P .. 'locks', a, b) end
    elseif kind == 'acls' then
      a, b, at = fields('>c16I4c0', request, at)
      if not member(P .. 'acls', a) then put(P .. 'acls', a, b) end
    elseif kind == 'orph' then
      a, at = fields('c16', request, at)
      call('ZADD', P .. 'orphans', '0', a)
    elseif kind == 'heir' then
      a, at = fields('c16', request, at)
      call('ZREM', P .. 'orphans', a)
    elseif kind == 'keep' then
      a, b, c = strings()
      put(P .. a, b, c)
    elseif kind == 'drop' then
      a, b, at = fields('>I4c0I4c0', request, at)
      drop(P .. a, b)
    elseif kind == 'sets' then
      a, b, c = strings()
      call('HSET', P .. a, b, c)
    elseif kind == 'used' then
      -- The upper half carries the sign.
      a, b, c, d, at = fields('>i4I4i4I4', request, at)
      inodes, blocks = add(inodes, a, b), add(blocks, c, d)
    else
      error('unknown effect ' .. kind)
    end
  end
  return apply, drop_node
end

-- Nodes are read, of each hash those that are named by their last bytes. No others are changed. Of each hash three things
-- are kept: its name, those bytes, and what was found.
local removes, hashes = number() == 1, {}
if removes then call('DEL', P .. 'none') end
for n = 1, 3 * number(), 3 do
  local base, bytes
  base, bytes, at = fields('>c8I4c0', request, at)
  local names = {}
  for k = 1, #bytes do names[k] = sub(bytes, k, k) end
  local key = P .. 'node:' .. base
  local found = call('HMGET', key, unpack(names))
  base = sub(base, 1, 7)
  for k = 1, #names do nodes[base .. names[k]] = found[k] end
  hashes[n], hashes[n + 1], hashes[n + 2] = key, names, found
end

local first, last = tonumber(seq), tonumber(seq)
local out, applied, noted, touched = {}, {}, {}, {}
local apply_seldom, drop_node
local earlier = call('HMGET', P .. 'ops', unpack(ARGV, 2))
local before = call('HMGET', P .. 'ops_before', unpack(ARGV, 2))
for n = 2, #ARGV do
  local id = ARGV[n]
  local length, touches, changed, guards, effects
  length, touches, changed, guards, effects, at = fields('>I4I4c0I4c0I4I4', request, at)
  local start = at
  local behind = at - #touches - #changed - 16 + length
  local committed = applied[id] or earlier[n - 1] or before[n - 1]
  local held = 0
  while not committed and held < guards and holds() do held = held + 1 end
  if committed then
    out[#out + 1] = 2
    out[#out + 1] = committed
  elseif held < guards then
    out[#out + 1] = 0
    out[#out + 1] = text(last)
    local wants = {
      same = 'node', free = 'entry', edge = 'entry', none = 'node', void = 'empty', room = 'usage', rows = 'slices',
      attr = 'xattrs', lock = 'locks', sett = 'settings', nset = 'settings', cntr = 'counter',
    }
    settle()
    at = start
    for _ = 1, guards do
      holds()
      answer(out, wants[kind], a, b)
    end
  else
    for _ = 1, effects do
      kind, at = sub(request, at, at + 3), at + 4
      if kind == 'node' then
        a, b, at = fields('>c8I4c0', request, at)
        if nodes[a] then
          if not drop_node then apply_seldom, drop_node = seldom() end
          drop_node(a)
        end
        nodes[a] = b
        more_inodes = more_inodes + 1
        use_blocks(1, b)
      elseif kind == 'edge' then
        a, b, c, at = fields('>c8I4c0I4c0', request, at)
        put_entry(a, b, b .. '\0' .. c)
      elseif kind == 'free' then
        a, b, at = fields('>c8I4c0', request, at)
        put_entry(a, b, false)
      elseif kind == 'both' then
        -- What a directory's change does: mtime and ctime become one time, but ctime never goes back.
        a, b, at = fields('c8c8', request, at)
        local found = nodes[a]
        if found then
          nodes[a] = sub(found, 1, 31) .. b .. (less(b, found, 40) and sub(found, 40, 47) or b) .. sub(found, 48)
        end
      elseif kind == 'time' then
        a, b, c, d, at = fields('>c8I4c0I4c0I4c0', request, at)
        local found = nodes[a]
        if found then
          if d ~= '' and less(d, found, 40) then d = '' end
          nodes[a] = sub(found, 1, 23) .. (b ~= '' and b or sub(found, 24, 31)) .. (c ~= '' and c or sub(found, 32, 39))
            .. (d ~= '' and d or sub(found, 40, 47)) .. sub(found, 48)
        end
      elseif kind == 'link' then
        a, b, at = fields('>c8i4', request, at)
        local found = nodes[a]
        if found then
          local links = fields('>I4', found, 12) + b
          links = links < 0 and 0 or links >= WORD and WORD - 1 or links
          nodes[a] = sub(found, 1, 11) .. pack('>I4', links) .. sub(found, 16)
        end
      elseif kind == 'data' then
        a, b, c, at = fields('>c8c8I4c0', request, at)
        if node(a) then
          local key = P .. 'rows:' .. a
          local newest = call('ZREVRANGEBYLEX', key, '(' .. b .. '\255', '[' .. b, 'LIMIT', '0', '1')[1]
          local number = newest and add(sub(newest, 9, 16), 0, 1) or ZERO
          call('ZADD', key, '0', b .. number .. c)
        end
      else
        if not apply_seldom then apply_seldom, drop_node = seldom() end
        apply_seldom()
      end
    end
    if effects > 0 then
      last = last + 1
      applied[id] = last
      noted[#noted + 1] = id
      noted[#noted + 1] = text(last)
      touched[#touched + 1] = sub(id, 1, 8)
      touched[#touched + 1] = touches
    end
    out[#out + 1] = 1
    out[#out + 1] = last
    for from = 1, #changed, 8 do out[#out + 1] = nodes[sub(changed, from, from + 7)] end
  end
  at = behind
end

if last > first then
  for n = 1, #hashes, 3 do
    local key, names, found = hashes[n], hashes[n + 1], hashes[n + 2]
    local base, new, gone = sub(key, -8, -2), {key}, false
    for k = 1, #names do
      local old, now = found[k], nodes[base .. names[k]]
      if now and now ~= old then
        new[#new + 1] = names[k]
        new[#new + 1] = now
      elseif old and not now then
        call('HDEL', key, names[k])
        gone = true
      end
    end
    if #new > 1 then
      local added = call('HSET', unpack(new))
      -- All that is in it is new, so the hash is.
      if added > 0 and call('HLEN', key) == added then call('ZADD', P .. 'nodes', '0', sub(key, -8)) end
    elseif gone and call('EXISTS', key) == 0 then
      call('ZREM', P .. 'nodes', sub(key, -8))
    end
  end
  settle()
  call('HSET', P .. 'state', 'seq', text(last), 'inodes', inodes, 'blocks', blocks)
  -- Those who watch are told, and the operations remembered.
  local oldest = last > 65536 and text(last - 65536) or '0'
  call('XADD', P .. 'changes', 'MINID', '~', oldest, text(last) .. '-0', unpack(touched))
  call('HSET', P .. 'ops', unpack(noted))
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
