-- One page of a range: {seq, 1 if there is more, rows, ACLs}. The request is a limit, a kind, and two
-- strings: if the scan is within an inode, `a` is the inode and `b` the position in it; otherwise `a` is the
-- position.
local limit = number()
local kind, a, b = strings()
local out, acls, more = {}, {}, false
local one_more = string.format('%d', limit + 1)

-- Members of a sorted set from a bound on, at most `limit`.
local function members(key, from)
  local found = call('ZRANGEBYLEX', key, from, '+', 'LIMIT', '0', one_more)
  if #found > limit then
    more = true
    found[#found] = nil
  end
  return found
end

if kind == SCAN_DIR or kind == SCAN_DIR_INODES or kind == SCAN_DIR_ACLS then
  -- `b` is the name after which to continue.
  for _, entry in ipairs(members(P .. 'dir:' .. a, b == '' and '-' or '[' .. b .. '\1')) do
    out[#out + 1] = entry
    -- The last eight bytes are the inode number.
    if kind ~= SCAN_DIR then out[#out + 1] = inode_record(sub(entry, -8)) end
  end
  if kind == SCAN_DIR_ACLS then
    -- Each ACL is returned once.
    local seen = {[NONE] = true}
    for at = 2, #out, 2 do
      local found = out[at]
      if found and #found >= 95 then
        for from = 64, 80, 16 do
          local id = sub(found, from, from + 15)
          if not seen[id] then
            seen[id] = true
            acls[#acls + 1] = id
            acls[#acls + 1] = value(P .. 'acls', id)
          end
        end
      end
    end
  end
elseif kind == SCAN_INODES then
  local last = byte(a, 8)
  local from, low = '[' .. sub(a, 1, 7) .. char(last - last % 16), last % 16 + 1
  local first = sub(from, 2)
  while not more do
    local buckets = call('ZRANGEBYLEX', P .. 'nodes', from, '+', 'LIMIT', '0', '64')
    for _, bucket in ipairs(buckets) do
      local base = byte(bucket, 8)
      local start = bucket == first and low or 0
      local fields = {}
      for n = start, 15 do fields[#fields + 1] = char(base + n) end
      local found = #fields > 0 and call('HMGET', P .. 'node:' .. bucket, unpack(fields)) or {}
      for n, one in ipairs(found) do
        if one and #out >= 2 * limit then
          more = true
          break
        elseif one then
          out[#out + 1] = sub(bucket, 1, 7) .. fields[n]
          out[#out + 1] = one
        end
      end
      if more then break end
    end
    if #buckets < 64 then break end
    from = '(' .. buckets[#buckets]
  end
elseif kind == SCAN_SLICES then
  local key, from = P .. 'rows:' .. a, '[' .. b
  while true do
    local first = call('ZRANGEBYLEX', key, from, '+', 'LIMIT', '0', '1')[1]
    if not first then break end
    if #out == limit then
      more = true
      break
    end
    local chunk = sub(first, 1, 8)
    local found = rows(a, chunk)
    table.insert(found, 1, chunk)
    out[#out + 1] = found
    from = '[' .. chunk .. '\255'
  end
elseif kind == SCAN_ORPHANS then
  for _, orphan in ipairs(members(P .. 'orphans', '(' .. a)) do out[#out + 1] = orphan end
else
  -- For any other kind, the kind is the name of a map.
  for _, one in ipairs(members(P .. kind, a == '' and '-' or '[' .. a .. '\1')) do out[#out + 1] = one end
end
return {seq, more and 1 or 0, out, acls}
