#!/bin/bash
# Records what docs/measurements has tables of, one after the other, on a machine that does nothing else: make measurements
# What has a file is not measured again, so that a stopped run goes on; remove a file to measure it anew.
# On a machine with one accelerator: docs/measurements/record.sh NAME records what it can say, in docs/measurements/NAME.
cd "$(dirname "$0")/../.." || exit 2
kept=docs/measurements/${1:-$(uname -m)-$(getconf _NPROCESSORS_ONLN)}
mkdir -p "$kept"
failed=0

wait_until_quiet() {  # wait_until_quiet NAME: until fewer than 0.3 processors are busy for two seconds
    until python3 -c "from cepheid.reference.machine.use import measure_load; raise SystemExit(measure_load() >= 0.3)"; do
        echo "$1: waits until fewer than 0.3 processors are busy"; sleep 20
    done
}

keep() {  # keep NAME RANKS WHAT… : `cepheid measure WHAT…` on so many ranks, as NAME.json and NAME.png, or a folder NAME
    local name=$1 ranks=$2; shift 2
    [ -e "$kept/$name.json" ] && return
    wait_until_quiet "$name"
    echo "$name"
    local start=(python3 -m cepheid.tools.measure)
    [ "$ranks" -gt 1 ] && start=(torchrun --standalone --nproc-per-node "$ranks" -m cepheid.tools.measure)
    local figure=(--figure "$kept/$name.png")
    [ "$1" = costs ] && figure=(--figures "$kept/$name")
    OMP_NUM_THREADS=1 "${start[@]}" "$@" --output "$kept/$name.json" "${figure[@]}" || failed=1
}

keep_on_two_nodes() {  # keep_on_two_nodes NAME WHAT… : two nodes of two ranks, both of them this machine
    local name=$1 node; shift
    [ -e "$kept/$name.json" ] && return
    wait_until_quiet "$name"
    echo "$name"
    for node in 1 0; do
        OMP_NUM_THREADS=1 torchrun --nnodes 2 --nproc-per-node 2 --node-rank $node --master-addr 127.0.0.1 \
            -m cepheid.tools.measure "$@" --output "$kept/$name.json" --figures "$kept/$name" &
    done
    wait $! || failed=1
}

scale() {  # scale BENCHMARK WHAT… : throughput by ranks, whose command keeps its points itself
    local name=scaling-$1
    [ -e "$kept/$name/scaling.json" ] && return
    wait_until_quiet "$name"
    OMP_NUM_THREADS=1 python3 -m cepheid.tools.measure scaling "$@" --ranks 1,2 --output "$kept/$name" || failed=1
}

keep_formats() {  # keep_formats NAME WHAT… : how fast a disk reads images, without a figure
    local name=$1; shift
    [ -e "$kept/$name.json" ] && return
    wait_until_quiet "$name"
    python3 -m cepheid.tools.measure formats "$@" --output "$kept/$name.json" || failed=1
}

if [ -n "${1:-}" ]; then
    noise=(--scale full --input synthetic)
    full=("${noise[@]}" --set precision=bf16 --set compile=off)
    keep costs-kfac 1 costs kfac "${full[@]}" --settle 10
    keep ladder-kfac 1 costs kfac --ladder "${noise[@]}" --settle 10
    keep networks-kfac 1 costs kfac --compare networks "${full[@]}" --settle 10 --rounds 3
    keep profile-kfac 1 speed kfac --profile "${full[@]}" --rounds 5 --set global_batch_size=32 --set kfac_stale=false
    keep profile-video_prediction 1 speed video_prediction --profile "${full[@]}" --rounds 3
    keep profile-transformer-1-sentence 1 speed transformer --profile "${full[@]}" --rounds 5 --set global_batch_size=1
    for name in transformer gnmt; do
        keep "profile-$name" 1 speed $name --profile "${full[@]}" --rounds 5 --set global_batch_size=256 --set pass_tokens=16384
    done
    for name in resnet50 chest_xray ssd; do
        keep "profile-$name" 1 speed $name --profile "${full[@]}" --rounds 5 --set global_batch_size=256
    done
    keep profile-mask_rcnn 1 speed mask_rcnn --profile "${full[@]}" --rounds 3 --set global_batch_size=4
    python3 docs/measurements/tables.py || failed=1
    exit $failed
fi
full=(--scale full --input synthetic --set threads=1 --set precision=fp32)
keep profile-transformer-1-sentence 1 speed transformer "${full[@]}" --profile --rounds 5 --set global_batch_size=1
keep profile-gnmt-1-sentence 1 speed gnmt "${full[@]}" --profile --rounds 5 --set global_batch_size=1
for name in resnet50 chest_xray ssd; do
    keep "profile-$name" 1 speed $name "${full[@]}" --profile --rounds 5 --set compile=off --set global_batch_size=8
done
keep profile-mask_rcnn 1 speed mask_rcnn "${full[@]}" --profile --rounds 3 --set compile=off --set global_batch_size=1
# The networks of 16 x 16 pixels: a step of the last ones, of 128 x 128, takes a thread some minutes.
keep profile-video_prediction-16-pixels 1 speed video_prediction "${full[@]}" --profile --rounds 3 --set compile=off \
    --set global_batch_size=2 --at 793875
keep profile-kfac 1 speed kfac "${full[@]}" --profile --rounds 3 --set compile=off --set global_batch_size=8 --set kfac_stale=false
small=(--settle 2 --rounds 3 --set global_batch_size=8)
keep costs-kfac 1 costs kfac "${full[@]}" "${small[@]}" --set compile=off
keep costs-kfac-32-images 1 costs kfac "${full[@]}" --settle 2 --rounds 3 --set global_batch_size=32 --set compile=off
keep networks-kfac 1 costs kfac --compare networks "${full[@]}" "${small[@]}" --set compile=off
keep ladder-kfac 1 costs kfac --ladder "${full[@]}" "${small[@]}"
for ranks in 1 2; do  # ResNet-18, 34, 50 and 101 by ranks
    keep "networks-kfac-mini-$ranks" $ranks costs kfac --compare networks --settle 30 --set threads=1 --set precision=fp32
done
keep costs-kfac-mini-2 2 costs kfac --settle 30 --set threads=1 --set precision=fp32
keep_on_two_nodes costs-kfac-mini-2-nodes costs kfac --settle 12 --rounds 3 --set threads=1 --set precision=fp32
for way in replicated sharded; do  # one sentence a rank: the share of the update before and after sharding
    keep "profile-transformer-2-ranks-$way" 2 speed transformer "${full[@]}" --profile --rounds 5 --set compile=off \
        --set global_batch_size=2 --set weight_update=$way
done
for name in transformer gnmt ssd mask_rcnn chest_xray; do
    keep "update-$name" 2 speed $name --only update --rounds 15
    keep "sums-$name" 2 speed $name --only sums --rounds 15
done
keep update-resnet50 2 speed resnet50 --only update --rounds 15 --set opt_name=lars
keep sums-resnet50 2 speed resnet50 --only sums --rounds 15 --set opt_name=lars
for name in transformer mask_rcnn; do keep "shared-$name" 2 speed $name --only shared --rounds 7; done
keep shared-resnet50 2 speed resnet50 --only shared --rounds 7 --set model_bn_span=4
for name in galaxy_shape galaxy_bnn; do
    keep "shared-$name" 2 speed $name --only shared --scale full --input synthetic --rounds 5
done
keep hosts-gnmt 1 speed gnmt --only hosts --input synthetic --rounds 5
for name in resnet50 ssd mask_rcnn; do
    shared=(speed $name --only partitions --input synthetic --rounds 7 --set global_batch_size=4)
    keep "partitions-$name" 2 "${shared[@]}"
    keep "partitions-$name-4" 4 "${shared[@]}"
done
keep partitions-resnet50-full 2 speed resnet50 --only partitions --scale full --input synthetic --rounds 3 --set global_batch_size=4
for name in resnet50 chest_xray kfac transformer gnmt ssd mask_rcnn video_prediction galaxy_shape galaxy_bnn galaxy_vae \
    galaxy_generation; do
    scale $name
done
for readers in 1 2; do keep_formats "formats-$readers" --readers $readers; done
# SHARED_DISK: a folder on a disk that several nodes share, such as NFS, Lustre or sshfs
[ -z "${SHARED_DISK:-}" ] || keep_formats formats-shared --readers 2 --files 2000 --data "$SHARED_DISK"
if [ ! -e "$kept/stragglers.png" ]; then  # whose runs are kept beside the benchmark; 1: some missed the target
    wait_until_quiet stragglers
    OMP_NUM_THREADS=1 python3 -m cepheid.tools.measure stragglers galaxy_shape --workers 2 --rates 1 0.3 --figure "$kept/stragglers.png" || [ $? = 1 ] || failed=1
fi
python3 docs/measurements/tables.py || failed=1
exit $failed
