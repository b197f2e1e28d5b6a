# julia --project=. test/runtests.jl, or Pkg.test(). Needs BYTEPS_HOME; the jobs need bpslaunch in PATH.
using BytePS
using Test

# (In a command literal @__DIR__ would be another one.)
const TESTS = @__DIR__
const PACKAGE = dirname(TESTS)

@testset "BytePS" begin
    include("structs.jl")
    include("alone.jl")
    haskey(ENV, "BYTEPS_DEVICE") && include("device.jl")
    include("jobs.jl")
end
