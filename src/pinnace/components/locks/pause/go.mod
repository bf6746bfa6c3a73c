module pinnace.invalid/build/pause

go 1.26.0

require k8s.io/kubernetes v1.36.3 // indirect
