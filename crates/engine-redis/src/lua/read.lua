-- Answers record keys: {seq, answers...}.
local out = {seq}
for _ = 1, number() do answer(out, strings()) end
return out
