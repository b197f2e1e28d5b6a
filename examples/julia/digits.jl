# Data-parallel training of a small network on handwritten digits.
#
#     export BYTEPS_HOME=$(python -c 'import byteps; print(byteps.__path__[0])')      # or the prefix of an installation
#     bpslaunch --workers 2 -- julia --project=frameworks/julia/BytePS examples/julia/digits.jl [EPOCHS [FILE]]
#
# What makes this training data-parallel is marked [1] to [5]; with one worker it is an ordinary program.

using BytePS
using LinearAlgebra
using Printf
using Random

const PIXELS, HIDDEN, DIGITS = 64, 128, 10
const BATCH_SIZE = 64 # over all workers
const LEARNING_RATE = 5.0f-3
const SEED = 1

"Images (pixels 0 to 1, one column each) and digits; examples/data/README.md says how they are stored."
function read_digits(file)
    bytes = read(file)
    length(bytes) > 0 && length(bytes) % (PIXELS + 1) == 0 ||
        error("$file has $(length(bytes)) bytes, no multiple of $(PIXELS + 1)")
    records = reshape(bytes, PIXELS + 1, :)
    images, digits = Float32.(records[1:PIXELS, :]) ./ 16, Int.(records[end, :])
    test = size(images, 2) ÷ 5 # the first fifth is for the test
    return (images[:, test+1:end], digits[test+1:end]), (images[:, 1:test], digits[1:test])
end

"Weights and biases of both layers."
function new_parameters(random)
    uniform(scale, size...) = scale .* (2 .* rand(random, Float32, size...) .- 1)
    return [uniform(sqrt(6.0f0 / PIXELS), HIDDEN, PIXELS), zeros(Float32, HIDDEN),
            uniform(sqrt(6.0f0 / HIDDEN), DIGITS, HIDDEN), zeros(Float32, DIGITS)]
end

hidden_layer(parameters, images) = max.(parameters[1] * images .+ parameters[2], 0)
output_layer(parameters, hidden) = parameters[3] * hidden .+ parameters[4]

"The hidden layer, the derivatives of the mean cross entropy by the outputs, and that entropy."
function forward(parameters, images, digits)
    hidden = hidden_layer(parameters, images)
    outputs = output_layer(parameters, hidden)
    errors = exp.(outputs .- maximum(outputs; dims=1))
    errors ./= sum(errors; dims=1)
    loss = 0.0f0
    for (i, digit) in enumerate(digits)
        loss -= log(errors[digit+1, i]) / length(digits)
        errors[digit+1, i] -= 1
    end
    return hidden, errors ./ length(digits), loss
end

accuracy(parameters, images, digits) =
    count(argmax(column) - 1 == digit
          for (column, digit) in zip(eachcol(output_layer(parameters, hidden_layer(parameters, images))), digits)) / length(digits)

"Adam."
mutable struct Adam
    means::Vector{Array{Float32}}
    squares::Vector{Array{Float32}}
    steps::Int
end
Adam(parameters) = Adam([zero(p) for p in parameters], [zero(p) for p in parameters], 0)

function step!(adam::Adam, parameters, gradients)
    adam.steps += 1
    first, second = 1 - 0.9f0^adam.steps, 1 - 0.999f0^adam.steps
    for (parameter, gradient, mean, square) in zip(parameters, gradients, adam.means, adam.squares)
        @. mean = 0.9f0 * mean + 0.1f0 * gradient
        @. square = 0.999f0 * square + 0.001f0 * gradient^2
        @. parameter -= LEARNING_RATE * (mean / first) / (sqrt(square / second) + 1.0f-8)
    end
end

function train(session, epochs, file)
    job = info(session)
    BLAS.set_num_threads(1) # several workers share the cores of this host
    (images, digits), test = read_digits(file)

    parameters = new_parameters(MersenneTwister(SEED + job.rank)) # differ, so that only [2] makes them equal
    tensors = [declare(session, "parameter.$i", parameter) for (i, parameter) in enumerate(parameters)]
    foreach(bcast!, tensors, parameters) # [2] start from the same weights
    gradients, adam = map(zero, parameters), Adam(parameters)
    # [4] average over all workers; returns at once
    send(i) = push_pull_async!(tensors[i], gradients[i]; op=AVERAGE, priority=-i)

    batch_size = max(1, BATCH_SIZE ÷ job.size)
    steps = length(digits) ÷ (batch_size * job.size)
    correct, start = 0.0, time()
    for epoch in 1:epochs
        order = shuffle(MersenneTwister(SEED + epoch), 1:length(digits)) # the same on all workers
        mine = order[job.rank+1:job.size:end] # [3] each takes its part
        epoch_start, loss = time(), 0.0f0
        for step in 1:steps
            batch = mine[(step-1)*batch_size+1:step*batch_size]
            hidden, errors, batch_loss = forward(parameters, images[:, batch], digits[batch])
            loss += batch_loss / steps
            # The gradients of the last layer travel while those of the first are computed.
            mul!(gradients[3], errors, hidden')
            sum!(gradients[4], errors)
            last_layer = [send(3), send(4)]
            hidden_errors = (parameters[3]' * errors) .* (hidden .> 0)
            mul!(gradients[1], hidden_errors, images[:, batch]')
            sum!(gradients[2], hidden_errors)
            foreach(wait, [last_layer; send(1); send(2)])
            step!(adam, parameters, gradients)
        end
        seconds = time() - epoch_start

        mean_loss = push_pull!(session, "loss", [loss])[1] # [5] the mean over all workers
        correct = accuracy(parameters, test...)
        job.rank == 0 && @printf("epoch %2d/%d  loss %.4f  test accuracy %.4f  %.0f samples/s\n", epoch, epochs, mean_loss,
                                 correct, steps * batch_size * job.size / seconds)
    end
    job.rank == 0 && @printf("digits: test accuracy %.4f in %.1f s, %d workers, %d servers, transport %s, scheduler %s\n",
                             correct, time() - start, job.size, job.num_servers, job.transport, job.scheduler)
end

epochs = length(ARGS) >= 1 ? parse(Int, ARGS[1]) : 30
file = length(ARGS) >= 2 ? ARGS[2] : joinpath(@__DIR__, "..", "data", "digits.bin")
Session(session -> train(session, epochs, file)) # [1] join the job, and leave it in the end
