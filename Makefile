# Nearmetal's front door. "make help" lists the targets. Each target does its own set-up and is quick when run again.

# Debian's go does not fetch the toolchain that go.mod names unless told to.
export GOTOOLCHAIN ?= auto
# Asked for when first used, because set-up may have just installed it.
GO = $(or $(go_found),$(eval go_found := $(shell setup/go.sh))$(go_found),go)
CARGO = $(or $(cargo_found),$(eval cargo_found := $(shell setup/rust.sh))$(cargo_found),cargo)
# All is compiled in one way, so that programs, their tests and lint share what the build cache has.
export CGO_ENABLED = 0
export GOFLAGS := -trimpath $(filter-out -trimpath,$(GOFLAGS))
# Tests that need root get it by running the test binaries, not the compiler, as root.
ASROOT := $(CURDIR)/setup/asroot.sh
TOOL = $(GO) tool -modfile=tools/tools.mod

VERSION := $(shell cat VERSION 2>/dev/null || git describe --tags --dirty 2>/dev/null || \
	echo devel-$$(git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown))
LDFLAGS = -s -w -X github.com/nearmetal/nearmetal/internal/config.release=$(VERSION)
MEMBER := internal/memberbin/embedded/nearmetal-member
RANKS := internal/memberbin/embedded/nearmetal-ucx.so
BOOT := internal/machine/bootbin/embedded/nearmetal-boot
SMP := internal/fabric/site/infiniband/smp
UNITS = ./api/... ./bench/... ./cmd/... ./internal/... ./testbed/... ./tools/... ./tests/hostile
GO_DIRS = $(wildcard api bench cmd internal testbed tests tools)
# What all tests together need; "make demo" needs less, "make bench" more.
TEST_PACKAGES = run build gpu demo test guest testbed
TEST_PARTS = lint unit test-gpuremote e2e test-guest test-boot
GUEST_UNITS = ./internal/cgroup ./internal/driver/container ./internal/environment/build ./tests/e2e
GUEST_TESTS ?= DriverContract|TestAMemberThatRanOutOfMemory|TestAControlGroup|TestAClusterRunsAnMPIJobAndLeavesNothing

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help gpuremote test-gpuremote build build-uncleaned member boot smp demo test unit e2e faults fuzz fuzz-api test-guest test-boot test-testbed test-fabrics test-clock test-prepare test-vm-guest test-network-guest test-sriov-guest test-gpu-guest guest-images qemu10 testbed testbed-down check lint fmt docs bench mutants install clean setup

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## run a cluster with MPI on this machine, measure its efficiency, and leave nothing behind; DEMO_FLAGS=--thorough measures longer (root or sudo)
	@setup/install.sh run build demo
	@$(MAKE) --no-print-directory build
	$(ASROOT) bin/nearmetal demo $(DEMO_FLAGS)

# Each part runs even when one before it failed, and says how long it took.
test: setup build ## run all tests: lint, unit, conformance, end to end, in a guest, a network boot; 25 minutes on 2 cores (root or sudo)
	@failed=; for part in $(TEST_PARTS); do \
		begun=$$(date +%s); $(MAKE) --no-print-directory $$part || failed="$$failed $$part"; \
		echo "make $$part took $$(($$(date +%s) - begun)) s"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

check: test ## same as test

build: member boot smp ## build bin/nearmetal
	@mkdir -p bin
	$(GO) build -ldflags='$(LDFLAGS)' -o bin/nearmetal ./cmd/nearmetal

# The member agent is embedded in the main binary, so it comes first, and so is a small library that members preload. It carries no version: its content is its identity.
member:
	@mkdir -p $(dir $(MEMBER))
	$(GO) build -ldflags='-s -w' -o $(MEMBER) ./cmd/nearmetal-member
	$(CC) -shared -fPIC -Os -nostdlib -s -Wall -Wextra -Werror -Wl,-z,noseparate-code,--hash-style=gnu,--build-id=none \
		-o $(RANKS) internal/memberbin/ucx/ucx.c

# So is the boot agent, the only program of the machines' initial RAM disks.
boot:
	@mkdir -p $(dir $(BOOT))
	$(GO) build -ldflags='-s -w' -o $(BOOT) ./cmd/nearmetal-boot

# So is the program that reads the tables of an InfiniBand fabric. It loads libibumad when it runs, so its headers are not needed.
smp:
	$(CC) -Os -s -Wall -Wextra -Werror -o $(SMP)/embedded/nearmetal-smp $(SMP)/reader/reader.c

setup: ## install the Debian packages and the Go toolchain for building and testing
	@setup/install.sh $(TEST_PACKAGES)

# Remote GPUs: what programs load in place of their driver, and the server, in Rust. Each has the name that its users look for.
# OpenCL's loader finds the driver with OCL_ICD_VENDORS=bin/gpuremote and LD_LIBRARY_PATH=bin/gpuremote.
GPUREMOTE = .build/gpuremote/release
CUDA_LIBRARIES = libcuda.so.1 libcudart.so.13 libcublas.so.13 libcufft.so.12 libcurand.so.10 libcusparse.so.12 libcudnn.so.9
OPENCL_DRIVER = libnearmetal_opencl.so
gpuremote: ## build the server and the front ends of remote GPUs into bin/gpuremote
	@setup/install.sh gpu
	cd gpuremote && $(CARGO) build --locked --release
	@mkdir -p bin/gpuremote
	install -m 755 $(GPUREMOTE)/nearmetal-gpu-server $(GPUREMOTE)/nearmetal-gpu-kernels bin/gpuremote/
	for library in $(CUDA_LIBRARIES); do install -m 755 $(GPUREMOTE)/$${library%%.so.*}.so bin/gpuremote/$$library || exit 1; done
	install -m 755 $(GPUREMOTE)/$(OPENCL_DRIVER) bin/gpuremote/
	echo $(OPENCL_DRIVER) >bin/gpuremote/nearmetal.icd

# Their tests need no GPU: OpenCL's device is the processor, and CUDA's driver a strict stand-in.
test-gpuremote: ## format, lint and test only remote GPUs
	@setup/install.sh gpu
	cd gpuremote && $(CARGO) fmt --check
	cd gpuremote && $(CARGO) clippy --locked --workspace --all-targets --quiet -- -D warnings
	cd gpuremote && $(CARGO) test --locked --workspace --quiet
	cd gpuremote && $(CARGO) build --locked --quiet -p gpuremote-server -p gpuremote-opencl -p nearmetal-gpu-kernels
	NEARMETAL_GPU_PROGRAMS=$(CURDIR)/.build/gpuremote/debug $(GO) test -count=1 -run OnPoCL ./internal/measure/study

# Failpoints are built in: crash tests kill the process that they mark. Lint has vetted the code. Several packages mostly wait for the kernel and for peers, so
# more are tested at once than there are cores.
unit: setup member boot smp ## run only unit and conformance tests
	$(GO) test -vet=off -tags failpoints -exec '$(ASROOT)' -timeout 10m -p $$((2 * $$(nproc))) $(UNITS)

# schemathesis and openapi-python-client, of PyPI: installed before the tests, whose network reaches nothing outside. The tests look for what
# is left in their folder for temporary files, so the compiler, which is still at work beside them, has one of its own.
API_CLIENTS = $(CURDIR)/.build/api-clients-$(firstword $(shell cksum tests/e2e/openapi/requirements.txt))
e2e: setup build ## run only end-to-end tests, with bin/nearmetal and bin/nearmetal-failpoints
	$(GO) build -tags failpoints -ldflags='$(LDFLAGS)' -o bin/nearmetal-failpoints ./cmd/nearmetal
	@mkdir -p .build/tmp .build/go
	@sh testbed/vdc/peers/install.sh tests/e2e/openapi/requirements.txt $(API_CLIENTS)
	cd gpuremote && $(CARGO) build --locked --quiet -p gpuremote-server -p gpuremote-opencl -p nearmetal-gpu-kernels
	$(if $(E2E_FLAGS),,$(GO) test -c -o .build/e2e.test ./tests/e2e)
	TMPDIR=$(CURDIR)/.build/tmp GOTMPDIR=$(CURDIR)/.build/go NEARMETAL_GPU_PROGRAMS=$(CURDIR)/.build/gpuremote/debug NEARMETAL_BIN_DIR=$(CURDIR)/bin NEARMETAL_API_CLIENTS=$(API_CLIENTS)/bin \
		$(if $(E2E_FLAGS),$(GO) test -exec '$(ASROOT) $(CURDIR)/tests/e2e/alone.sh' -count=1 -timeout 25m $(E2E_FLAGS) ./tests/e2e,tests/e2e/beside.sh 3 .build/e2e.test)

# What "make test" does for a few rounds, for long: docs/reliability.md tells what came of it.
NEARMETAL_FAULT_ROUNDS ?= 50
faults: ## run NEARMETAL_FAULT_ROUNDS=50 rounds of random faults: kills, silence, crashes at each failpoint, histories (root or sudo)
	NEARMETAL_FAULT_ROUNDS=$(NEARMETAL_FAULT_ROUNDS) $(MAKE) e2e \
		E2E_FLAGS='-timeout 12h -v -run "Fault|Crash|Silent|Linearizable|MovedToAnotherNode" $(FAULTS_FLAGS)'

# What "make test" does for 20 seconds in each role: schemathesis calls the API by its document, with valid and invalid data.
NEARMETAL_FUZZ_SECONDS ?= 600
fuzz-api: ## fuzz the API against its own document, NEARMETAL_FUZZ_SECONDS=600 as admin, member and viewer each (root or sudo)
	NEARMETAL_FUZZ_SECONDS=$(NEARMETAL_FUZZ_SECONDS) $(MAKE) e2e E2E_FLAGS='-timeout 12h -v -run "^TestTheAPIDoesWhatItsDocumentSays"'

# Each runs its seeds in "make unit".
NEARMETAL_FUZZ_TARGET_SECONDS ?= 30
fuzz: setup member boot smp ## fuzz each parser and message for NEARMETAL_FUZZ_TARGET_SECONDS=30
	@grep -rno --include='*_test.go' '^func Fuzz[A-Za-z0-9]*' internal testbed | while IFS=: read -r file _ target; do \
		$(GO) test "./$$(dirname "$$file")" -run '^$$' -fuzz "^$${target#func }$$" -fuzztime $(NEARMETAL_FUZZ_TARGET_SECONDS)s || exit 1; \
	done

# The guest is Debian's own kernel with cgroup v2 only, emulated. It runs what depends on the kernel's cgroups; GUEST_TESTS=. runs all of it.
IN_GUEST = NEARMETAL_BIN_DIR=$(CURDIR)/bin $(GO) test -exec '$(ASROOT) $(CURDIR)/bin/cgroupv2 -modules loop,tun' -p 1 -count=1 -timeout 40m
test-guest: setup build ## test in emulated Debian guests: the container stack under cgroup v2, and a power cut
	$(GO) build -o bin/cgroupv2 ./testbed/cgroupv2
	$(IN_GUEST) -run '$(GUEST_TESTS)' $(GUEST_UNITS)
	NEARMETAL_GUESTS=1 NEARMETAL_BIN_DIR=$(CURDIR)/bin $(GO) test -exec '$(ASROOT)' -count=1 -run '^TestCommitsSurviveAPowerCut$$' ./testbed/powercut

# A program whose boot agent says that it cleaned a machine and erases nothing: with it a test shows that its search finds what a tenant left.
UNCLEANED = $(CURDIR)/.build/uncleaned
build-uncleaned: build
	@mkdir -p $(UNCLEANED)
	$(GO) build -tags uncleaned -ldflags='-s -w' -o $(UNCLEANED)/nearmetal-boot ./cmd/nearmetal-boot
	echo '{"Replace": {"$(CURDIR)/$(BOOT)": "$(UNCLEANED)/nearmetal-boot"}}' >$(UNCLEANED)/overlay.json
	$(GO) build -overlay $(UNCLEANED)/overlay.json -ldflags='$(LDFLAGS)' -o bin/nearmetal-uncleaned ./cmd/nearmetal

# A tour of two machines that were off: one with BIOS and Redfish, one with UEFI and IPMI. Three minutes, and as many as the packages of the
# environment take to arrive.
BOOT_TESTS ?= TestMachinesThatWereOff|TestAClusterWithSlurm
test-boot: setup build ## boot two emulated machines over the network and run a cluster on them (root or sudo)
	NEARMETAL_TESTBED=1 NEARMETAL_BIN_DIR=$(CURDIR)/bin $(GO) test -exec '$(ASROOT)' -count=1 -timeout 30m -v -run '$(BOOT_TESTS)' ./tests/boot

# All that needs emulated machines: each kind of power control with each kind of firmware, strangers, every fault, hosts of virtual machines. One
# package after the other, because memory for the machines is what a computer has least of.
TESTBED_TESTS ?= .
test-testbed: setup build build-uncleaned ## run all tests that need emulated machines, more than an hour; TESTBED_TESTS=Stranger selects some (root or sudo)
	@$(MAKE) --no-print-directory qemu10
	NEARMETAL_TESTBED=1 NEARMETAL_BIN_DIR=$(CURDIR)/bin $(GO) test -exec '$(ASROOT)' -p 1 -count=1 -timeout 3h -v -run '$(TESTBED_TESTS)' \
		./testbed/vdc ./testbed/power ./testbed/netboot ./internal/environment/build ./internal/dataset/cache ./internal/measure/study ./tests/boot
	NEARMETAL_GUESTS=1 NEARMETAL_BIN_DIR=$(CURDIR)/bin $(GO) test -tags failpoints -exec '$(ASROOT)' -p 1 -count=1 -timeout 1h -v -run '$(TESTBED_TESTS)' \
		./testbed/powercut ./testbed/debiantree ./internal/machine/bootagent ./internal/driver/vm ./internal/hostcheck
	$(if $(filter .,$(TESTBED_TESTS)),$(MAKE) --no-print-directory test-fabrics test-clock test-prepare test-vm-guest test-network-guest test-volume-guest test-volume-bounds test-sriov-guest test-gpu-guest)

# Needs no emulated machine, but minutes of two cores.
test-fabrics: setup smp ## change the partitions of 100 tenants at once on a simulated fat tree of 648 hosts, compare all tables, and measure
	NEARMETAL_FABRICS=1 $(GO) test -exec '$(ASROOT)' -count=1 -timeout 30m -v -run 'AHundredTenants' -bench 'PartitionChange' -benchtime 5x ./internal/fabric/site/infiniband/opensm

test-clock: setup build ## make the clock of an emulated Debian guest jump by days while a site runs in it
	$(GO) build -o bin/cgroupv2 ./testbed/cgroupv2
	$(IN_GUEST) -v -run '^TestTheClockMayJump$$' ./tests/e2e

# A Debian guest with cgroup v2 only, and all that a host of virtual machines needs.
VM_HOST = $(CURDIR)/bin/cgroupv2 -packages libvirt-daemon,libvirt-daemon-driver-qemu,qemu-system-x86,qemu-utils
test-prepare: setup build ## prepare an emulated Debian guest to be a host of virtual machines, as a dry run shows beforehand
	$(GO) build -o bin/cgroupv2 ./testbed/cgroupv2
	NEARMETAL_BIN_DIR=$(CURDIR)/bin $(GO) test -exec '$(ASROOT) $(VM_HOST)' -count=1 -v -run '^TestAMachineIsPreparedAsTheDryRunShowed$$' ./tests/e2e

# The machine in the guest is emulated by what is emulated itself: an environment takes more than ten minutes to boot there, so nothing waits for a boot.
VM_GUEST_TESTS ?= ^TestAMachineHasItsShareOfTheNodeFromItsFirstInstruction$$
test-vm-guest: setup build ## start, limit, pin, pause, stop and end virtual machines in an emulated Debian guest with cgroup v2
	$(GO) build -o bin/cgroupv2 ./testbed/cgroupv2
	NEARMETAL_GUESTS=1 $(GO) test -exec '$(ASROOT)' -p 1 ./testbed/debiantree ./testbed/foreignimage
	NEARMETAL_GUESTS=1 $(GO) test -exec '$(ASROOT) $(VM_HOST) -memory-mib 3072 -timeout 25m -modules tun -share /var/cache/nearmetal/boot' \
		-ldflags='-s -w' -count=1 -timeout 30m -v -run '$(VM_GUEST_TESTS)' ./internal/driver/vm

# Networks on kernel modules that not every machine has. In the guest, namespaces play the nodes.
NETWORK_GUEST_TESTS ?= VLAN|OnATrunk|Encryption|AKeyMayChange|ProbesPassTheEncryption|TestASiteWithAnEncryptedUnderlay
test-network-guest: setup build ## test networks in an emulated Debian guest whose kernel has WireGuard and VLANs
	$(GO) build -o bin/cgroupv2 ./testbed/cgroupv2
	NEARMETAL_BIN_DIR=$(CURDIR)/bin $(GO) test -exec '$(ASROOT) $(CURDIR)/bin/cgroupv2 -timeout 25m -modules wireguard,vxlan,8021q' -p 1 -count=1 -timeout 30m -v \
		-run '$(NETWORK_GUEST_TESTS)' ./internal/fabric/node ./tests/e2e

# Kernels with NFS are in the guest only. Namespaces play the nodes.
VOLUME_GUEST = $(GO) test -exec '$(ASROOT) $(CURDIR)/bin/cgroupv2 -timeout 25m -memory-mib 4096 -modules nfsd,nfsv4,loop,xfs,vxlan,wireguard,sch_htb,cls_u32' -p 1 -count=1 -timeout 30m -v
test-volume-guest: setup build ## serve volumes to other nodes, and keep some in a thin pool of LVM, in an emulated Debian guest whose kernel has an NFS server and device mapper
	$(GO) build -o bin/cgroupv2 ./testbed/cgroupv2
	NEARMETAL_NFS=1 $(VOLUME_GUEST) -bench VolumeOfAnotherNode -benchtime 25x ./internal/volume/nfsd ./internal/volume/nfs
	NEARMETAL_NFS=1 $(VOLUME_GUEST) -run '^TestAMachineHasAVolumeOfAnotherNode$$' ./internal/driver/vm
	$(GO) build -tags failpoints -ldflags='$(LDFLAGS)' -o bin/nearmetal-failpoints ./cmd/nearmetal
	NEARMETAL_NFS=1 NEARMETAL_BIN_DIR=$(CURDIR)/bin $(VOLUME_GUEST) -run '^TestAVolumeReachesOtherNodes' ./tests/e2e
	NEARMETAL_LVM=1 $(GO) test -tags failpoints -exec '$(ASROOT) $(LVM_HOST)' -p 1 -count=1 -timeout 80m -v ./internal/volume/lvmthin

# A Debian guest with LVM, whose kernel has a device mapper. A command of LVM takes a second there.
LVM_HOST = $(CURDIR)/bin/cgroupv2 -timeout 75m -memory-mib 4096 -packages lvm2,thin-provisioning-tools -modules dm-thin-pool,loop

# Needs no emulated machine, but 3 GiB of the disk and minutes of it.
test-volume-bounds: setup ## fill a volume by fio while another is written, give one a million files, and measure what those cost whoever makes, copies and deletes volumes
	@setup/install.sh testbed
	NEARMETAL_VOLUME_BOUNDS=1 $(GO) test -exec '$(ASROOT)' -count=1 -timeout 30m -v -run '^TestAVolumeThatIsFullDisturbsNoOther$$|^TestAVolumeHoldsAMillionFiles' ./internal/volume/imagepool

# An adapter with seven virtual functions and an IOMMU, in a guest of a QEMU that has both. The machine in it is emulated by what is emulated itself.
SRIOV_GUEST_TESTS ?= ^TestAnAdaptersFunctionsGoToMachines|^TestTenantsOnOneAdapter|^TestAStandby
test-sriov-guest: setup build qemu10 ## give virtual functions of an emulated adapter to containers and a virtual machine of two tenants, in an emulated Debian guest
	$(GO) build -o bin/cgroupv2 ./testbed/cgroupv2
	NEARMETAL_ADAPTER=1 $(GO) test -exec '$(ASROOT) $(VM_HOST) -emulator $(NEARMETAL_QEMU10) -adapters 1 -timeout 55m -modules igb,igbvf,vfio-pci,8021q,tun' \
		-ldflags='-s -w' -count=1 -timeout 60m -v -run '$(SRIOV_GUEST_TESTS)' ./internal/fabric/node

test-gpu-guest: setup ## give an emulated GPU to vfio-pci and take it back with nothing of its owner, in an emulated Debian guest
	$(GO) build -o bin/cgroupv2 ./testbed/cgroupv2
	NEARMETAL_GPU_GUEST=1 $(GO) test -exec '$(ASROOT) $(CURDIR)/bin/cgroupv2 -gpu -modules vfio-pci' -ldflags='-s -w' -count=1 -timeout 15m -v -run '^TestAKernelsGPU' ./internal/gpu/passthrough

# Debian 12's QEMU has no adapter with SR-IOV, so a later one comes beside it; NEARMETAL_QEMU10 tells tests where its emulator is.
export NEARMETAL_QEMU10 ?= $(CURDIR)/.build/qemu10/qemu-system-x86_64
qemu10: ## put a QEMU with SR-IOV adapters (10.0, of Debian's backports) beside the system's, in .build/qemu10
	@setup/install.sh testbed
	@setup/qemu10.sh $(dir $(NEARMETAL_QEMU10))

# Machines to try bare metal without hardware: they are off, and the links nmprov0 and nmbmc0 reach their network and their BMCs.
TESTBED_FLAGS ?=
testbed: ## start a virtual data centre: powered-off machines, their BMCs, a network; TESTBED_FLAGS='-bios 2 -uefi 2 -igb -switch' (root or sudo)
	@setup/install.sh run build guest testbed $(if $(findstring -switch,$(TESTBED_FLAGS)),test)
	@$(if $(findstring -igb,$(TESTBED_FLAGS)),$(MAKE) --no-print-directory qemu10)
	$(GO) build -o bin/vdcctl ./testbed/vdc/vdcctl
	$(ASROOT) bin/vdcctl up -server-address 10.99.0.1/24 $(TESTBED_FLAGS)

testbed-down: ## stop the virtual data centre and remove everything it made
	$(GO) build -o bin/vdcctl ./testbed/vdc/vdcctl
	$(ASROOT) bin/vdcctl down $(TESTBED_FLAGS)

# The disks of other systems that the tests import, kept below /var/cache/nearmetal.
guest-images: ## make disk images of two other systems, to import into a site, and print their paths (root or sudo)
	@setup/install.sh run build guest testbed
	@NEARMETAL_GUESTS=1 $(GO) test -exec '$(ASROOT)' -count=1 -v -run '^TestDisksAreMadeOnceAndKept$$' ./testbed/foreignimage

lint: setup member boot smp ## check formatting, vet, staticcheck, go mod tidy
	$(GO) mod tidy -diff
	@unformatted=$$($(TOOL) gofumpt -l $(GO_DIRS)) || exit 1; \
	[ -z "$$unformatted" ] || { echo "not gofumpt clean (make fmt):" $$unformatted; exit 1; }
	$(GO) vet ./...
	$(TOOL) staticcheck ./...

fmt: ## format all Go files
	$(TOOL) gofumpt -l -w $(GO_DIRS)

# Pages that follow from tables in the code are written by the tests that else compare them.
docs: member ## write the generated pages of docs/
	$(GO) test ./internal/apiserver -run ErrorPage -update
	$(GO) test ./internal/cli -run Documentation -update
	$(GO) test ./internal/lifecycle -update

bench: ## measure the figures of docs/performance.md, both sides in one run (root or sudo)
	@setup/install.sh $(TEST_PACKAGES) bench
	@$(MAKE) --no-print-directory build gpuremote
	$(GO) build -o bin/bench ./bench
	$(ASROOT) bin/bench -go $(GO) $(BENCH_FLAGS)

mutants: setup member boot smp ## remove each guard in turn; its named test must fail
	NEARMETAL_GUESTS=1 $(GO) run ./tools/mutants -exec '$(ASROOT)' $(MUTANTS_FLAGS)

install: build ## install bin/nearmetal to /usr/local/bin
	$(ASROOT) install -D -m 755 bin/nearmetal $(DESTDIR)/usr/local/bin/nearmetal

clean: ## remove all build outputs
	rm -rf bin .build $(MEMBER) $(RANKS) $(BOOT)
