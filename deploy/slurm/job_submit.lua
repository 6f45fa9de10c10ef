-- SPDX-License-Identifier: Apache-2.0
-- Turns --gpumem=SIZE of sbatch, srun and salloc into a request of generic resources, which Slurm
-- schedules (JobSubmitPlugins=lua). A site that has a job_submit.lua adds gpumem_request to it, and
-- calls that from its slurm_job_submit.

-- The GRES that counts MiB: "gpumem", or "shard" (GresTypes in slurm.conf).
local GRES = "gpumem"

-- MiB of the largest GPU, for nodes with several and GRES = "gpumem": larger requests are refused.
-- nil: Slurm's check alone, which knows the sum of a node's GPUs.
local LARGEST = nil

-- The option as spank_gpumem.so leaves it in the job's description.
local OPTION = "_SLURM_SPANK_OPTION_gpumem_gpumem="

local MIB = { K = 1 / 1024, M = 1, G = 1024, T = 1024 * 1024 }

-- Returns the MiB of a size such as "40G"; nil: it is none.
local function mebibytes(size)
  local number, unit = size:match("^(%d+)(%a*)$")
  if number == nil then return nil end
  unit = unit:upper():gsub("^(%u)IB$", "%1")
  if unit == "" then unit = "M" end
  if MIB[unit] == nil then return nil end
  return math.ceil(tonumber(number) * MIB[unit])
end

-- Returns the value of --gpumem; nil: it was not given.
local function option_of(job)
  for _, entry in pairs(job.spank_job_env or {}) do
    if entry:sub(1, #OPTION) == OPTION then return entry:sub(#OPTION + 1) end
  end
  return nil
end

-- Adds the request to the job. Returns slurm.SUCCESS, or slurm.ERROR after a message to the user.
function gpumem_request(job)
  local option = option_of(job)
  if option == nil then return slurm.SUCCESS end
  local mib = mebibytes(option:match("^[^,]*"))
  if mib == nil or mib == 0 then
    slurm.log_user("--gpumem=%s: expected a size such as 40G", option)
    return slurm.ERROR
  end
  if LARGEST ~= nil and mib > LARGEST then
    slurm.log_user("--gpumem=%s: no GPU has more than %d MiB", option, LARGEST)
    return slurm.ERROR
  end
  local request = string.format("gres:%s:%d", GRES, mib)
  local gres = job.gres or ""
  if gres == "" then
    job.gres = request
  elseif ("," .. gres .. ","):find("," .. request .. ",", 1, true) then
    -- The same is asked for twice.
  elseif ("," .. gres .. ","):find(",gres:" .. GRES .. "[,:]") then
    slurm.log_user("--gpumem=%s: --gres asks for another amount of %s", option, GRES)
    return slurm.ERROR
  else
    job.gres = gres .. "," .. request
  end
  return slurm.SUCCESS
end

function slurm_job_submit(job, partitions, uid)
  return gpumem_request(job)
end

function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
