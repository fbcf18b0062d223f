-- Commits transactions one after the other.
--
-- The request begins with: the term that keeps the results of all transactions (session and number; empty if
-- none), whether the request only removes, whether an operation ID occurs twice in it, and the hashes of the
-- inodes that it reads or changes. Then follow, for each transaction: its length, its invalidations, the
-- number of its guards, the guards, and the effects. The operation IDs are the further arguments.
--
-- The answer begins with the final state of each inode that the request marks as changed, or nil if the
-- request changes nothing. Then follows for each transaction: the number of its commit; or the negative
-- number of the earlier commit that it repeats; or, if a guard does not hold, nil, seq, and an answer to the
-- record key of each guard.
--
-- Guards and effects begin with a code of four letters; `code.rs` has the codes. The call of `fields` that
-- reads a guard or an effect also reads the code of the next one, because a call costs more than what it
-- decodes. TXN_END follows the last effect.
--
-- Redis does not roll a script back, so no command may fail after the first write. If the server refuses
-- writes (because it is a replica, or its disk or memory is full), it refuses the first write, and nothing
-- has happened. Redis checks for free memory only at the first write, and only for commands that may
-- allocate. So a request that only removes begins with a command that does not allocate.
--
-- A server spends most of its time in this script, so the cases of a create, by far the most frequent change,
-- come first everywhere. Lua creates a function (a closure with a reference to each outer variable) each time
-- the script reaches its definition. So code that is used once is inlined, and rarely used functions are
-- created on demand. Lua hashes the whole of each string that it creates, so no unnecessary strings are
-- created.
local WORD = 4294967296
-- The amounts that the transactions so far add to the usage and that `settle_usage` has not added yet.
local more_inodes, more_blocks = 0, 0

-- Adds the signed number high * 2^32 + low to a. The result is clamped to 0 ... 2^64 - 1.
local function add(a, high, low)
  local ah, al = fields('>I4I4', a)
  al, ah = al + low, ah + high
  if al >= WORD then al, ah = al - WORD, ah + 1 end
  if ah < 0 then return ZERO end
  if ah >= WORD then return string.rep('\255', 8) end
  return pack('>I4I4', ah, al)
end

-- Adds these amounts to the usage.
local function settle_usage()
  if more_inodes ~= 0 then inodes = add(inodes, math.floor(more_inodes / WORD), more_inodes % WORD) end
  if more_blocks ~= 0 then blocks = add(blocks, math.floor(more_blocks / WORD), more_blocks % WORD) end
  more_inodes, more_blocks = 0, 0
end

-- The code that was read last.
local kind
-- The last lookup by GUARD_DIRENT_ABSENT: the directory, its key, the name, and the entry of that name or
-- false.
local dir, key, name, taken

-- New entries of one directory that are not written yet: the arguments of one ZADD (the key of the directory,
-- then the entries), their number, the name that was added last, and the names that were added before it.
-- `enter` writes them before other entries are changed and before the directory is read.
local entering, entered, newest, earlier = {}, 0, nil, {}

-- By term: whether it is open. Usually one term guards all transactions of a request, so this saves a lookup
-- for each transaction.
local terms = {}

-- The ACLs that are known to be stored and not condemned; the first character of the text of a condemned ACL.
local acls, CONDEMNED = {}, 33

-- By name: the entry with this name, as this script has read or changed it, and the directory that the entry
-- is in.
local entries, parents = {}, {}

local function enter()
  if entering[1] then
    call('ZADD', unpack(entering, 1, entered))
    entering[1] = false
  end
end

-- An existing inode whose times are to be changed, and the new times as 32-bit halves. mtime is that of the
-- last change; ctime never goes back.
local timed, mtime_high, mtime_low, ctime_high, ctime_low

local function settle_times()
  if timed then
    local found = found_inodes[timed]
    local before, old, high, low = fields('>c31c8I4I4', found)
    local mtime = pack('>I4I4', mtime_high, mtime_low)
    local ctime = mtime
    if high > ctime_high or high == ctime_high and low > ctime_low then
      ctime = sub(found, 40, 47)
    elseif ctime_low ~= mtime_low or ctime_high ~= mtime_high then
      ctime = pack('>I4I4', ctime_high, ctime_low)
    end
    found_inodes[timed] = before .. mtime .. ctime .. sub(found, 48)
    timed = nil
  end
end

local function set_times(ino, high, low)
  if ino == timed then
    if high > ctime_high or high == ctime_high and low > ctime_low then ctime_high, ctime_low = high, low end
  elseif found_inodes[ino] then
    settle_times()
    timed, ctime_high, ctime_low = ino, high, low
  else
    return
  end
  mtime_high, mtime_low = high, low
end

-- Functions that a create of a file does not need. `make_others` defines them when the first one is needed.
local apply, drop_inode, holds, put_entry, answer_guards

local function make_others()
  -- True if the 64-bit number a is less than the one at offset `from` of b.
  local function less(a, b, from)
    local ah, al = fields('>I4I4', a)
    local bh, bl = fields('>I4I4', b, from)
    return ah < bh or ah == bh and al < bl
  end

  -- The sum of two signed numbers, or the nearest number of 64 bits.
  local function plus(a, b)
    local ah, al = fields('>i4I4', a)
    local bh, bl = fields('>i4I4', b)
    local high, low = ah + bh, al + bl
    if low >= WORD then high, low = high + 1, low - WORD end
    if high > 2147483647 then high, low = 2147483647, WORD - 1 end
    if high < -2147483648 then high, low = -2147483648, 0 end
    return pack('>i4I4', high, low)
  end

  -- True if more is 0, or the number at offset `used` plus more is not above the number at offset `limit`.
  -- All are signed.
  local function fits(quota, used, more, limit)
    if more == ZERO then return true end
    local uh, ul = fields('>i4I4', quota, used)
    local mh, ml = fields('>i4I4', more)
    local lh, ll = fields('>i4I4', quota, limit)
    local high, low = uh + mh, ul + ml
    if low >= WORD then high, low = high + 1, low - WORD end
    return high < lh or high == lh and low <= ll
  end

  -- The size of an inode's extended attributes in blocks: the last two bytes of its record, if it has any.
  local function attr_blocks(found)
    return #found % 4 == 1 and fields('>I2', found, #found - 1) or 0
  end

  -- Adds an inode's blocks of 4096 bytes to the usage, or subtracts them if sign is -1: the blocks of its
  -- extended attributes and, for a regular file, the blocks of its data.
  local function use_blocks(sign, found)
    more_blocks = more_blocks + sign * attr_blocks(found)
    if byte(found, 1) == 8 and sub(found, 16, 23) ~= ZERO then
      local high, low = fields('>I4I4', found, 16)
      more_blocks = more_blocks + sign * (high * 1048576 + math.ceil(low / 4096))
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

  -- Splits a string of rows, each preceded by its length.
  local function split(all)
    local found, from = {}, 1
    while from <= #all do found[#found + 1], from = fields('>I4c0', all, from) end
    return found
  end

  local function entry(of, called)
    if parents[called] ~= of then
      if of == dir and called == name then
        entries[called] = taken
      else
        enter()
        entries[called] = member(P .. 'dir:' .. of, called) or false
      end
      parents[called] = of
    end
    return entries[called]
  end

  function put_entry(of, called, new)
    local old = entry(of, called)
    if old ~= new then
      enter()
      if old then call('ZREM', P .. 'dir:' .. of, old) end
      if new then call('ZADD', P .. 'dir:' .. of, '0', new) end
      entries[called] = new
      if of == dir and called == name then taken = new end
    end
  end

  function holds()
    local a, b, c
    if kind == GUARD_DIRENT_IS then
      a, b, c, kind, at = fields('>c8I4c0c8c4', request, at)
      local found = entry(a, b)
      return found and sub(found, -8) == c
    elseif kind == GUARD_INODE_ABSENT then
      a, kind, at = fields('c8c4', request, at)
      return not found_inodes[a]
    elseif kind == GUARD_EMPTY then
      a, kind, at = fields('c8c4', request, at)
      enter()
      return call('EXISTS', P .. 'dir:' .. a) == 0
    elseif kind == GUARD_ROOM then
      a, b, kind, at = fields('c8c8c4', request, at)
      settle_usage()
      return less(inodes, a, 1) and less(blocks, b, 1)
    elseif kind == GUARD_ROWS then
      a, b, c, kind, at = fields('>c8c8I4c0c4', request, at)
      local found = rows(a, b)
      for n, row in ipairs(split(c)) do
        if not found[n] or sub(found[n], 17) ~= row then return false end
      end
      return true
    elseif kind == GUARD_XATTR then
      a, b, c, kind, at = fields('>c8I4c0I4c4', request, at)
      local length = call('HSTRLEN', P .. 'xattrs:' .. a, b)
      return (length > 0 and math.ceil(length / 4096) or call('HEXISTS', P .. 'xattrs:' .. a, b)) == c
    elseif kind == GUARD_XATTR_BLOCKS then
      a, b, c, kind, at = fields('>c8I4I4c4', request, at)
      local found = inode_record(a) and attr_blocks(inode_record(a))
      return found and found >= b and found <= c
    elseif kind == GUARD_LOCKS then
      a, b, kind, at = fields('>c8I4c0c4', request, at)
      return inode_record(a) and (value(P .. 'locks', a) or '') == b
    elseif kind == GUARD_QUOTA then
      local outer, inodes, blocks
      a, outer, inodes, blocks, kind, at = fields('>c9I4c0c8c8c4', request, at)
      local found = value(P .. 'quotas', a)
      if not found then return outer == '' end
      return (outer == '' or sub(found, 17, 24) == outer)
        and fits(found, 1, inodes, 25) and fits(found, 9, blocks, 33)
    elseif kind == GUARD_SESSION then
      a, kind, at = fields('c8c4', request, at)
      return member(P .. 'sessions', a)
    elseif kind == GUARD_HEARTBEAT then
      a, b, kind, at = fields('c8c8c4', request, at)
      local found = value(P .. 'sessions', a)
      return found and sub(found, 1, 8) == b
    elseif kind == GUARD_SETTING then
      a, b, kind, at = fields('>I4c0I4c0c4', request, at)
      return call('HGET', P .. 'settings', a) == b
    elseif kind == GUARD_NO_SETTING then
      a, kind, at = fields('>I4c0c4', request, at)
      return not call('HGET', P .. 'settings', a)
    elseif kind == GUARD_COUNTER then
      a, b, kind, at = fields('>I4c0c8c4', request, at)
      return (call('HGET', P .. 'counters', a) or ZERO) == b
    end
    error('unknown guard ' .. kind)
  end

  -- Reads this many guards and answers their record keys.
  function answer_guards(out, guards)
    -- For each guard: the code of its record key, and its format. The record key comes first, the next code
    -- last.
    local records = {
      [GUARD_INODE_BYTES] = {RECORD_INODE, '>c8BI4c0c4'}, [GUARD_XATTR_BLOCKS] = {RECORD_INODE, '>c8I4I4c4'},
      [GUARD_ACCESS] = {RECORD_INODE, 'c8c8c4'}, [GUARD_INODE_ABSENT] = {RECORD_INODE, 'c8c4'},
      [GUARD_DIRENT_IS] = {RECORD_DIRENT, '>c8I4c0c8c4'}, [GUARD_DIRENT_ABSENT] = {RECORD_DIRENT, '>c8I4c0c4'},
      [GUARD_EMPTY] = {RECORD_EMPTY, 'c8c4'}, [GUARD_ROOM] = {RECORD_USAGE, 'c8c8c4'},
      [GUARD_ROWS] = {RECORD_SLICES, '>c8c8I4c0c4'}, [GUARD_XATTR] = {RECORD_XATTRS, '>c8I4c0I4c4'},
      [GUARD_LOCKS] = {RECORD_LOCKS, '>c8I4c0c4'}, [GUARD_SETTING] = {RECORD_SETTINGS, '>I4c0I4c0c4'},
      [GUARD_NO_SETTING] = {RECORD_SETTINGS, '>I4c0c4'}, [GUARD_COUNTER] = {RECORD_COUNTER, '>I4c0c8c4'},
      [GUARD_SESSION] = {RECORD_SESSION, 'c8c4'}, [GUARD_HEARTBEAT] = {RECORD_SESSION, 'c8c8c4'},
      [GUARD_TERM] = {RECORD_SESSION, 'c8c4c4'}, [GUARD_ACL] = {RECORD_ACL, 'c16c4'}, [GUARD_QUOTA] = {RECORD_QUOTA, '>c9I4c0c8c8c4'},
    }
    enter()
    settle_times()
    settle_usage()
    for _ = 1, guards do
      local record, form = unpack(records[kind])
      local found = {fields(form, request, at)}
      kind, at = found[#found - 1], found[#found]
      answer(out, record, found[1], found[2])
    end
  end

  -- Releases the slice that a removed row referred to. The slice becomes garbage unless another row refers to
  -- it.
  local function release(row)
    if sub(row, 9, 9) ~= 'b' then return end
    local slice = sub(row, 10, 17)
    local others = value(P .. 'shared', slice)
    if others and others ~= ZERO then
      put(P .. 'shared', slice, add(others, -1, WORD - 1))
    else
      if others then drop(P .. 'shared', slice) end
      put(P .. 'garbage', slice, sub(row, 22, 25))
    end
  end

  local function drop_rows(key, from, to)
    for _, row in ipairs(call('ZRANGEBYLEX', key, from, to)) do release(sub(row, 17)) end
    call('ZREMRANGEBYLEX', key, from, to)
  end

  function drop_inode(ino)
    local found = inode_record(ino)
    if found then
      more_inodes = more_inodes - 1
      use_blocks(-1, found)
      found_inodes[ino] = false
      if ino == timed then timed = nil end
      drop(P .. 'locks', ino)
      call('DEL', P .. 'xattrs:' .. ino, P .. 'symlink:' .. ino)
      if call('EXISTS', P .. 'rows:' .. ino) == 1 then drop_rows(P .. 'rows:' .. ino, '-', '+') end
    end
  end

  local function end_term(term)
    call('ZREM', P .. 'terms', term)
    call('UNLINK', P .. 'ops:' .. term)
    terms = {}
  end

  function apply()
    local a, b, c, d
    if kind == EFFECT_DROP_DIRENT then
      a, b, kind, at = fields('>c8I4c0c4', request, at)
      put_entry(a, b, false)
    elseif kind == EFFECT_SET_TIMES then
      a, b, c, d, kind, at = fields('>c8I4c0I4c0I4c0c4', request, at)
      if a == timed then settle_times() end
      local found = found_inodes[a]
      if found then
        if d ~= '' and less(d, found, 40) then d = '' end
        found_inodes[a] = sub(found, 1, 23) .. (b ~= '' and b or sub(found, 24, 31)) .. (c ~= '' and c or sub(found, 32, 39))
          .. (d ~= '' and d or sub(found, 40, 47)) .. sub(found, 48)
      end
    elseif kind == EFFECT_DROP_INODE then
      a, kind, at = fields('c8c4', request, at)
      drop_inode(a)
    elseif kind == EFFECT_EXTEND or kind == EFFECT_SET_SIZE then
      local always = kind == EFFECT_SET_SIZE
      a, b, kind, at = fields('c8c8c4', request, at)
      local found = inode_record(a)
      if found and (always or less(sub(found, 16, 23), b, 1)) then
        use_blocks(-1, found)
        found = sub(found, 1, 15) .. b .. sub(found, 24)
        use_blocks(1, found)
        found_inodes[a] = found
      end
    elseif kind == EFFECT_ADD_XATTR_BLOCKS then
      a, b, kind, at = fields('>c8i4c4', request, at)
      local found = inode_record(a)
      if found then
        local old = attr_blocks(found)
        local new = math.min(math.max(old + b, 0), 65535)
        more_blocks = more_blocks + new - old
        found_inodes[a] = sub(found, 1, old > 0 and -3 or -1) .. (new > 0 and pack('>I2', new) or '')
      end
    elseif kind == EFFECT_APPEND_SLICE then
      a, b, c, kind, at = fields('>c8c8I4c0c4', request, at)
      if inode_record(a) then
        local key = P .. 'rows:' .. a
        local newest = call('ZREVRANGEBYLEX', key, '(' .. b .. '\255', '[' .. b, 'LIMIT', '0', '1')[1]
        local number = newest and add(sub(newest, 9, 16), 0, 1) or ZERO
        call('ZADD', key, '0', b .. number .. c)
      end
    elseif kind == EFFECT_SET_ACCESS then
      a, b, c, d, kind, at = fields('>c8I4c0I4c0I4c0c4', request, at)
      local found = inode_record(a)
      if found then
        -- A device number (4 bytes), the quota tag (8), which is replaced, and the size of extended
        -- attributes (2) come last, after the ACLs if there are any.
        local rest = sub(found, #found >= 95 and 96 or 64)
        local attrs = #rest % 4
        local device = (#rest - attrs) % 8
        local rev = add(sub(found, 56, 63), 0, 1)
        found_inodes[a] = sub(found, 1, 1) .. b .. sub(found, 12, 55) .. rev .. c .. sub(rest, 1, device) .. d
          .. sub(rest, #rest - attrs + 1)
      end
    elseif kind == EFFECT_SET_PARENT then
      a, b, kind, at = fields('c8c8c4', request, at)
      local found = inode_record(a)
      if found then found_inodes[a] = sub(found, 1, 47) .. b .. sub(found, 56) end
    elseif kind == EFFECT_DROP_SLICES then
      a, b, c, kind, at = fields('c8c8c8c4', request, at)
      drop_rows(P .. 'rows:' .. a, '[' .. b, '(' .. c)
    elseif kind == EFFECT_REPLACE_ROWS then
      a, b, c, d, kind, at = fields('>c8c8I4I4c0c4', request, at)
      local key, found, new = P .. 'rows:' .. a, rows(a, b), split(d)
      local count = math.min(c, #found)
      for n = 1, count do
        call('ZREM', key, found[n])
        if new[n] then call('ZADD', key, '0', sub(found[n], 1, 16) .. new[n]) end
      end
      for n = 1, count do release(sub(found[n], 17)) end
    elseif kind == EFFECT_SHARE then
      a, b, kind, at = fields('>c8I4c4', request, at)
      put(P .. 'shared', a, add(value(P .. 'shared', a) or ZERO, 0, b))
    elseif kind == EFFECT_PUT_XATTR then
      a, b, c, kind, at = fields('>c8I4c0I4c0c4', request, at)
      if inode_record(a) then call('HSET', P .. 'xattrs:' .. a, b, c) end
    elseif kind == EFFECT_DROP_XATTR then
      a, b, kind, at = fields('>c8I4c0c4', request, at)
      call('HDEL', P .. 'xattrs:' .. a, b)
    elseif kind == EFFECT_PUT_SYMLINK then
      a, b, kind, at = fields('>c8I4c0c4', request, at)
      if inode_record(a) then call('SET', P .. 'symlink:' .. a, b) end
    elseif kind == EFFECT_PUT_LOCKS then
      a, b, kind, at = fields('>c8I4c0c4', request, at)
      if inode_record(a) then put(P .. 'locks', a, b) end
    elseif kind == EFFECT_PUT_ACL then
      a, b, kind, at = fields('>c16I4c0c4', request, at)
      local found = value(P .. 'acls', a)
      if not found then
        put(P .. 'acls', a, b)
      elseif byte(found, 1) == CONDEMNED then
        put(P .. 'acls', a, sub(found, 2))
      end
    elseif kind == EFFECT_CONDEMN_ACL then
      a, kind, at = fields('c16c4', request, at)
      local found = value(P .. 'acls', a)
      if found and byte(found, 1) ~= CONDEMNED then put(P .. 'acls', a, char(CONDEMNED) .. found) end
      acls = {}
    elseif kind == EFFECT_DROP_ACL then
      a, kind, at = fields('c16c4', request, at)
      local found = value(P .. 'acls', a)
      if found and byte(found, 1) == CONDEMNED then drop(P .. 'acls', a) end
    elseif kind == EFFECT_PUT_ORPHAN then
      a, kind, at = fields('c16c4', request, at)
      call('ZADD', P .. 'orphans', '0', a)
    elseif kind == EFFECT_DROP_ORPHAN then
      a, kind, at = fields('c16c4', request, at)
      call('ZREM', P .. 'orphans', a)
    elseif kind == EFFECT_PUT_MEMBER then
      a, b, c, kind, at = fields('>I4c0I4c0I4c0c4', request, at)
      put(P .. a, b, c)
    elseif kind == EFFECT_DROP_MEMBER then
      a, b, kind, at = fields('>I4c0I4c0c4', request, at)
      drop(P .. a, b)
      if a == 'sessions' then
        local ended = call('ZRANGEBYLEX', P .. 'terms', '[' .. b, '[' .. b .. string.rep('\255', 5))
        for _, term in ipairs(ended) do end_term(term) end
      end
    elseif kind == EFFECT_BEGIN_TERM then
      a, b, c, kind, at = fields('>c8c4I4c0c4', request, at)
      if member(P .. 'sessions', a) then
        call('ZADD', P .. 'terms', '0', a .. b)
        terms[a .. b] = nil
        for n = 1, #c, 4 do end_term(a .. sub(c, n, n + 3)) end
      end
    elseif kind == EFFECT_PUT_FIELD then
      a, b, c, kind, at = fields('>I4c0I4c0I4c0c4', request, at)
      call('HSET', P .. a, b, c)
    elseif kind == EFFECT_ADD_USAGE then
      -- The upper half is signed.
      a, b, c, d, kind, at = fields('>i4I4i4I4c4', request, at)
      inodes, blocks = add(inodes, a, b), add(blocks, c, d)
    elseif kind == EFFECT_PUT_QUOTA then
      a, b, kind, at = fields('>c9I4c0c4', request, at)
      local found = value(P .. 'quotas', a)
      put(P .. 'quotas', a, (found and sub(found, 1, 16) or NONE) .. b)
    elseif kind == EFFECT_CHARGE then
      a, b, c, d, kind, at = fields('>c9c8c8I4c0c4', request, at)
      local found = value(P .. 'quotas', a) or NONE .. d
      put(P .. 'quotas', a, plus(sub(found, 1, 8), b) .. plus(sub(found, 9, 16), c) .. sub(found, 17))
    else
      error('unknown effect ' .. kind)
    end
  end
end

-- Reads, from each hash, the inodes whose last bytes the request names. No other inodes are changed. The
-- answer contains the first `changed` inodes of each hash.
local keeper, removes, twice, count
keeper, removes, twice, count, at = fields('>I4c0I4I4I4', request, at)
local hashes, out, outs = {}, {}, 0
if removes == 1 then call('DEL', P .. 'none') end
for n = 1, count do
  local base, changed, bytes
  base, changed, bytes, at = fields('>c8I4I4c0', request, at)
  local size, names, inos = #bytes, {fields(string.rep('c1', #bytes), bytes)}, {}
  local hash = P .. 'node:' .. base
  local found = call('HMGET', hash, unpack(names, 1, size))
  base = sub(base, 1, 7)
  for k = 1, size do
    local ino = base .. names[k]
    inos[k], found_inodes[ino] = ino, found[k]
  end
  for _ = 1, changed do
    outs = outs + 1
    out[outs] = false
  end
  hashes[n] = {key = hash, names = names, found = found, inos = inos, changed = changed}
end

local first = tonumber(seq)
-- Usually only the last digit changes, so one table lookup replaces string.format.
local last, tens, digits = first, sub(seq, 1, -2), {'0', '1', '2', '3', '4', '5', '6', '7', '8', '9'}
local results, changes, noted = {}, {}, 0
local applied = twice == 1 and {}
local ops = keeper == '' and P .. 'ops' or P .. 'ops:' .. keeper
local done = call('HMGET', ops, unpack(ARGV, 2))
local done_before = keeper == '' and call('HMGET', P .. 'ops_before', unpack(ARGV, 2)) or {}
for n = 2, #ARGV do
  local id, start = ARGV[n], at
  local length, invalidations, guards
  length, invalidations, guards, kind, at = fields('>I4I4c0I4c4', request, at)
  local code, from, left = kind, at, guards
  local a, b, c
  local repeated = done[n - 1] or done_before[n - 1] or applied and applied[id]
  local held = not repeated
  while held and left > 0 do
    left = left - 1
    if kind == GUARD_ACCESS then
      a, b, kind, at = fields('c8c8c4', request, at)
      local found = found_inodes[a]
      held = found and sub(found, 56, 63) == b
    elseif kind == GUARD_DIRENT_ABSENT then
      a, name, kind, at = fields('>c8I4c0c4', request, at)
      if a ~= dir then dir, key = a, P .. 'dir:' .. a end
      if parents[name] == a then
        taken = entries[name]
      else
        if entering[1] == key and (name == newest or earlier[name]) then enter() end
        -- Searched from the end, because names often arrive in ascending order. At most one member matches.
        taken = call('ZREVRANGEBYLEX', key, '(' .. name .. '\1', '[' .. name .. '\0')[1] or false
      end
      held = not taken
    elseif kind == GUARD_TERM then
      a, kind, at = fields('c12c4', request, at)
      held = terms[a]
      if held == nil then
        held = call('ZSCORE', P .. 'terms', a)
        terms[a] = held
      end
    elseif kind == GUARD_ACL then
      a, kind, at = fields('c16c4', request, at)
      held = acls[a]
      if not held then
        -- The text of an ACL that is not condemned begins with a character above CONDEMNED. Counting does not
        -- copy the text.
        held = call('ZLEXCOUNT', P .. 'acls', '(' .. a .. '\0' .. char(CONDEMNED + 1), '(' .. a .. '\1') == 1
        acls[a] = held
      end
    elseif kind == GUARD_INODE_BYTES then
      a, b, c, kind, at = fields('>c8BI4c0c4', request, at)
      local found = found_inodes[a]
      held = found and sub(found, b, b + #c - 1) == c
    else
      if not apply then make_others() end
      held = holds()
    end
  end
  outs = outs + 1
  if repeated then
    out[outs] = '-' .. repeated
  elseif not held then
    if not apply then make_others() end
    kind, at = code, from
    out[outs], out[outs + 1] = false, string.format('%d', last)
    answer_guards(out, guards)
    outs = #out
  else
    if kind ~= TXN_END then
      last = last + 1
      local digit = last % 10
      if digit == 0 then tens = string.format('%d', last / 10) end
      local number = tens .. digits[digit + 1]
      if applied then applied[id] = number end
      results[noted + 1], results[noted + 2] = id, number
      changes[noted + 1], changes[noted + 2] = sub(id, 1, 8), invalidations
      noted = noted + 2
    end
    out[outs] = last
    while kind ~= TXN_END do
      if kind == EFFECT_PUT_INODE then
        local high, low
        a, b, high, low, kind, at = fields('>c8I4c0I4I4c4', request, at)
        if found_inodes[a] then
          if not apply then make_others() end
          drop_inode(a)
        end
        found_inodes[a] = b
        more_inodes, more_blocks = more_inodes + 1, more_blocks + high * WORD + low
      elseif kind == EFFECT_PUT_DIRENT then
        a, b, c, kind, at = fields('>c8I4c0I4c0c4', request, at)
        c = b .. '\0' .. c
        if a ~= dir or b ~= name or taken then
          if not apply then make_others() end
          put_entry(a, b, c)
        else
          -- The name was looked up and is free, so nothing needs to be removed.
          if entering[1] == key then
            earlier[newest] = true
          else
            enter()
            entering[1], entered = key, 1
          end
          entering[entered + 1], entering[entered + 2] = '0', c
          entered = entered + 2
          taken, newest = c, name
          if parents[name] == dir then entries[name] = c end
        end
      elseif kind == EFFECT_SET_MTIME_CTIME then
        -- A directory changed: mtime and ctime get the same value.
        a, b, c, kind, at = fields('>c8I4I4c4', request, at)
        set_times(a, b, c)
      elseif kind == EFFECT_ADD_LINKS then
        a, b, kind, at = fields('>c8i4c4', request, at)
        local found = found_inodes[a]
        if found then
          local links = fields('>I4', found, 12) + b
          links = links < 0 and 0 or links >= WORD and WORD - 1 or links
          found_inodes[a] = sub(found, 1, 11) .. pack('>I4', links) .. sub(found, 16)
        end
      else
        if not apply then make_others() end
        apply()
      end
    end
  end
  at = start + 4 + length
end

if last > first then
  enter()
  settle_times()
  settle_usage()
  local number = results[noted]
  call('HSET', P .. 'state', 'seq', number, 'inodes', inodes, 'blocks', blocks)
  -- Append to the stream for watchers, and keep the operations' results.
  local oldest = last > 65536 and string.format('%d', last - 65536) or '0'
  call('XADD', P .. 'changes', 'MINID', '~', oldest, number .. '-0', unpack(changes))
  call('HSET', ops, unpack(results))
  outs = 0
  for n = 1, #hashes do
    local hash = hashes[n]
    local names, inos, found, changed = hash.names, hash.inos, hash.found, hash.changed
    -- The arguments of HSET. This reuses a table that has already grown.
    local new, count, removed = results, 1, false
    new[1] = hash.key
    for k = 1, #inos do
      local old, now = found[k], found_inodes[inos[k]]
      if now and now ~= old then
        new[count + 1], new[count + 2] = names[k], now
        count = count + 2
      elseif old and not now then
        call('HDEL', hash.key, names[k])
        removed = true
      end
      if k <= changed then
        outs = outs + 1
        out[outs] = now
      end
    end
    if count > 1 then
      local added = call('HSET', unpack(new, 1, count))
      -- All fields of the hash are new, so the hash is new.
      if added > 0 and call('HLEN', hash.key) == added then call('ZADD', P .. 'nodes', '0', sub(hash.key, -8)) end
    elseif removed and call('EXISTS', hash.key) == 0 then
      call('ZREM', P .. 'nodes', sub(hash.key, -8))
    end
  end
  -- Results that no term keeps are dropped when they are at least 16,384 transactions and two minutes old, or
  -- when there are a million of them.
  if math.floor(last / 16384) > math.floor(first / 16384) then
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
