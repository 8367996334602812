package gpu

import (
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/loadercache"
)

// Dir is the folder of a member with the files of NVIDIA's driver: lib and bin.
const Dir = "/run/nearmetal-gpu"

// nodeUVM is the device node of the driver's unified memory, without which CUDA does not begin.
const nodeUVM = "/dev/nvidia-uvm"

// choose returns what a container needs to use a GPU of NVIDIA's: what a CDI file of the node says, or else what Nearmetal makes itself. The files that
// nvidia-ctk makes have hooks, which members don't get. file is the CDI file; empty: none.
func (g *nvidiaGPU) choose(cfg Config, files []cdiDevice) (edits source, file string) {
	if g.MIG == "enabled" {
		return nil, "" // by its slices only
	}
	for _, d := range files {
		_, name, _ := strings.Cut(d.name, "=")
		if d.vendor == vendorNVIDIA && d.problem == "" && (name == g.ID || g.minor >= 0 && len(d.own.DeviceNodes) > 0 && d.own.DeviceNodes[0].Path == g.node()) {
			return d.edits(cfg.Root), d.file
		}
	}
	own := func() (*Edits, error) { return g.edits(cfg.Root) }
	if len(g.Problems) == 0 {
		if _, err := own(); err != nil {
			g.say("%v", err)
		}
	}
	return own, ""
}

// shown is the GPU for people.
func (g *nvidiaGPU) shown(file string) api.NodeGPU {
	shown := g.NodeGPU
	shown.CDI = file
	return shown
}

// node is the GPU's device node.
func (g *nvidiaGPU) node() string { return fmt.Sprintf("/dev/nvidia%d", g.minor) }

// edits are what a container needs to use the GPU: its device node, those of the driver, and the driver's libraries for computing.
func (g *nvidiaGPU) edits(root string) (*Edits, error) {
	if g.minor < 0 {
		return nil, errors.New("neither nvidia-smi nor the driver tells the number of its device node")
	}
	return g.driverEdits(root, g.node())
}

// driverEdits are what a container needs of the driver, whichever GPU it uses: the driver's device nodes behind some others, and its libraries for computing.
func (g *nvidiaGPU) driverEdits(root string, nodes ...string) (*Edits, error) {
	edits := &Edits{Libraries: map[string]string{}}
	for _, path := range append(nodes, "/dev/nvidiactl", nodeUVM, nodeUVM+"-tools") {
		node, err := deviceNode(root, path, path, "rw")
		if errors.Is(err, fs.ErrNotExist) {
			if path == nodeUVM+"-tools" {
				continue // for debuggers only
			}
			return nil, fmt.Errorf("%s is not there; run: nvidia-modprobe -c %d -u", path, g.minor)
		}
		if err != nil {
			return nil, err
		}
		edits.Devices = append(edits.Devices, node)
	}
	folder, err := libraryFolder(root)
	if err != nil {
		return nil, err
	}
	if err := edits.addLibraries(root, folder, g.Driver); err != nil {
		return nil, err
	}
	for _, program := range []string{"/usr/bin/nvidia-smi", ownDir + "/bin/nvidia-smi"} {
		if isExecutable(filepath.Join(root, program)) {
			edits.Mounts = append(edits.Mounts, Mount{Path: Dir + "/bin/nvidia-smi", HostPath: program, ReadOnly: true})
			break
		}
	}
	return edits, nil
}

// isExecutable reports whether a file is an ELF program, not a script that runs one: what a script names may not be there in a member.
func isExecutable(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	magic := make([]byte, len(elf.ELFMAG))
	_, err = io.ReadFull(file, magic)
	return err == nil && string(magic) == elf.ELFMAG
}

// libraryFolders are where drivers have their libraries, by distribution: Debian and its kin, others, and systems with a read-only root.
var libraryFolders = []string{
	"/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu/nvidia/current", "/usr/lib64",
	"/usr/lib", ownDir + "/lib64", ownDir + "/lib",
}

// libraryFolder is the folder of libcuda.so.1: by the loader's cache, or where drivers have it.
func libraryFolder(root string) (string, error) {
	var folders []string
	if text, err := os.ReadFile(filepath.Join(root, "etc/ld.so.cache")); err == nil {
		if cache, err := loadercache.Parse(text); err == nil {
			for _, e := range cache.Entries {
				if e.Name == "libcuda.so.1" && e.Flags == loadercache.NativeFlags {
					folders = append(folders, filepath.Dir(e.Path))
				}
			}
		}
	}
	for _, folder := range append(folders, libraryFolders...) {
		if native(filepath.Join(root, folder, "libcuda.so.1")) {
			return folder, nil
		}
	}
	return "", fmt.Errorf("libcuda.so.1 is neither in the loader's cache nor in %s; install the driver's library (Debian: libcuda1)", strings.Join(libraryFolders, ", "))
}

// native reports whether a file is a library for this machine's processor.
func native(file string) bool {
	f, err := elf.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	return f.Class == elf.ELFCLASS64 && f.Machine == nativeMachine
}

// computing are the driver's libraries for computing, without what follows; those for pictures are left out.
var computing = []string{
	"libcuda", "libcudadebugger", "libnvcuvid", "libnvidia-allocator", "libnvidia-cfg", "libnvidia-encode", "libnvidia-gpucomp", "libnvidia-ml", "libnvidia-nvvm",
	"libnvidia-nvvm70", "libnvidia-opencl", "libnvidia-opticalflow", "libnvidia-pkcs11", "libnvidia-pkcs11-openssl3", "libnvidia-ptxjitcompiler", "libnvidia-sandboxutils",
	"libnvidia-tileiras", "libnvidia-compiler",
}

// addLibraries adds the driver's libraries of a folder, each by its own name (DT_SONAME), which the loader looks for.
func (e *Edits) addLibraries(root, folder, driver string) error {
	entries, err := os.ReadDir(filepath.Join(root, folder))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		stem, version, found := strings.Cut(entry.Name(), ".so.")
		if !found || !slices.Contains(computing, stem) || driver != "" && version != driver {
			continue
		}
		file := filepath.Join(folder, entry.Name())
		name := soname(filepath.Join(root, file))
		if name == "" {
			continue
		}
		to := Dir + "/lib/" + name
		e.Mounts = append(e.Mounts, Mount{Path: to, HostPath: file, ReadOnly: true})
		e.Libraries[name] = to
		// Programs that open a library themselves often name it without its version.
		e.Libraries[stem+".so"] = to
	}
	if e.Libraries["libcuda.so.1"] == "" {
		return fmt.Errorf("%s has no libcuda.so.%s, which the kernel's driver needs; install the library in the driver's version", folder, cmp.Or(driver, "*"))
	}
	return nil
}

// soname is the name of a library by which programs ask for it, "" where it has none or can't be read.
func soname(file string) string {
	f, err := elf.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	names, err := f.DynString(elf.DT_SONAME)
	if err != nil || len(names) != 1 || filepath.Base(names[0]) != names[0] {
		return ""
	}
	return names[0]
}
