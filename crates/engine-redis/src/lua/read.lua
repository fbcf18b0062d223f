-- Answers wants: {seq, answers...}.
local out = {seq}
for _, want in ipairs(request) do answer(out, want[1], want[2], want[3]) end
return out
