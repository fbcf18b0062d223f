-- The common part of all scripts. KEYS[1] is the prefix of every key. ARGV[1] is the request; `request.rs`
-- describes its encoding. 64-bit numbers are big-endian strings of 8 bytes, because Lua's numbers are
-- doubles. They are never compared with <, because < uses the server's locale.
local call, sub, byte, char = redis.call, string.sub, string.byte, string.char
local pack, fields = struct.pack, struct.unpack
local P = KEYS[1]
local ZERO, NONE = string.rep('\0', 8), string.rep('\0', 16)

-- The number of the last commit, and the usage of the volume.
local state = call('HMGET', P .. 'state', 'seq', 'inodes', 'blocks')
local seq, inodes, blocks = state[1], state[2], state[3]
if not seq then
  return redis.error_reply('NOVOLUME the volume no longer exists; was the database flushed?')
end
-- The request, and the position of the next field in it.
local request, at = ARGV[1], 1

local function number()
  local found
  found, at = fields('>I4', request, at)
  return found
end

-- Reads three strings.
local function strings()
  local a, b, c
  a, b, c, at = fields('>I4c0I4c0I4c0', request, at)
  return a, b, c
end

-- A map, ordered by its keys, is a sorted set: each member is a key, NUL, and its value. Keys of variable
-- length never contain NUL.
local function member(map, key)
  return call('ZRANGEBYLEX', map, '[' .. key .. '\0', '(' .. key .. '\1', 'LIMIT', '0', '1')[1]
end

local function value(map, key)
  local found = member(map, key)
  return found and sub(found, #key + 2) or false
end

-- Inodes as this script has read or changed them; false if absent.
local found_inodes = {}

-- Sixteen inodes share a hash, which is small enough for Redis to store it without pointers. A field is an
-- inode's last byte.
local function inode_record(ino)
  local found = found_inodes[ino]
  if found == nil then
    local last = byte(ino, 8)
    found = call('HGET', P .. 'node:' .. sub(ino, 1, 7) .. char(last - last % 16), sub(ino, 8))
    found_inodes[ino] = found
  end
  return found
end

-- The rows of a chunk: the members that begin with the chunk index.
local function rows(ino, chunk)
  return call('ZRANGEBYLEX', P .. 'rows:' .. ino, '[' .. chunk, '(' .. chunk .. '\255')
end

-- Adds an inode and the texts of its ACLs to `out`.
local function add_inode(out, ino)
  local found = inode_record(ino)
  out[#out + 1] = found
  if found and #found >= 95 then
    for at = 64, 80, 16 do
      local id = sub(found, at, at + 15)
      if id ~= NONE then out[#out + 1] = value(P .. 'acls', id) end
    end
  end
end

-- Answers a record key, in the order in which `read.rs` decodes it.
local function answer(out, record, a, b)
  if record == RECORD_INODE then
    add_inode(out, a)
  elseif record == RECORD_DIRENT then
    local entry = value(P .. 'dir:' .. a, b)
    out[#out + 1] = entry
    if entry then add_inode(out, sub(entry, 2)) end
  elseif record == RECORD_EMPTY then
    out[#out + 1] = 1 - call('EXISTS', P .. 'dir:' .. a)
  elseif record == RECORD_XATTRS then
    out[#out + 1] = call('HGETALL', P .. 'xattrs:' .. a)
  elseif record == RECORD_SYMLINK then
    out[#out + 1] = call('GET', P .. 'symlink:' .. a)
  elseif record == RECORD_SLICES then
    out[#out + 1] = rows(a, b)
  elseif record == RECORD_ACL then
    out[#out + 1] = value(P .. 'acls', a)
  elseif record == RECORD_SETTINGS then
    out[#out + 1] = call('HGETALL', P .. 'settings')
  elseif record == RECORD_COUNTER then
    out[#out + 1] = call('HGET', P .. 'counters', a)
  elseif record == RECORD_USAGE then
    out[#out + 1] = inodes
    out[#out + 1] = blocks
  elseif record == RECORD_LOCKS then
    out[#out + 1] = value(P .. 'locks', a)
  elseif record == RECORD_SESSION then
    out[#out + 1] = value(P .. 'sessions', a)
  elseif record == RECORD_QUOTA then
    out[#out + 1] = value(P .. 'quotas', a)
  elseif record == RECORD_WAITS then
    out[#out + 1] = call('ZRANGEBYLEX', P .. 'waits', '-', '+')
  else
    error('unknown record key ' .. tostring(record))
  end
end
