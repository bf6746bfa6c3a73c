#!/bin/sh
# Three steps, each waiting for the last: a Kubernetes Job prepares, a Slurm array computes, a pod collects.
# Needs a cluster with a bridge: pinnace up --bridge=localhost/pinnace-test/busybox:1 --image busybox.tar
set -e
cd "$(dirname "$0")"
kubectl apply -f prepare.yaml
kubectl wait --for=condition=Complete job/prepare --timeout=120s
kubectl apply -f compute.yaml
kubectl wait --for=condition=Complete slurmjob.pinnace.dev/compute slurmjob.pinnace.dev/check --timeout=300s
kubectl apply -f collect.yaml
kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/collect --timeout=120s
kubectl get slurmjobs.pinnace.dev
kubectl logs collect
