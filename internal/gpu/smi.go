package gpu

import (
	"context"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// nvidiaGPU is a GPU as nvidia-smi describes it.
type nvidiaGPU struct {
	api.NodeGPU
	// minor is the number of its device node, and index its number for nvidia-smi; both are -1 where they are not known.
	minor, index int
	slices       []nvidiaSlice
}

// smiLog is what of the answer to nvidia-smi -q -x is read (nvidia-smi(1); its DTD is nvsmi_device_v12.dtd in driver 580).
type smiLog struct {
	Driver string   `xml:"driver_version"`
	CUDA   string   `xml:"cuda_version"`
	GPUs   []smiGPU `xml:"gpu"`
}

type smiGPU struct {
	// ID is the PCI address with a domain of 8 digits.
	ID      string     `xml:"id,attr"`
	Product string     `xml:"product_name"`
	UUID    string     `xml:"uuid"`
	Minor   string     `xml:"minor_number"`
	Memory  string     `xml:"fb_memory_usage>total"`
	MIG     string     `xml:"mig_mode>current_mig"`
	Slices  []smiSlice `xml:"mig_devices>mig_device"`
	// Recovery is what the driver asks for after an error, such as "GPU Reset"; absent in older drivers.
	Recovery string `xml:"gpu_recovery_action"`
}

var (
	uuidText = regexp.MustCompile(`^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	pciText  = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
)

const (
	// mostGPUs bounds the GPUs of a node: no machine has as many.
	mostGPUs = 64
	// ownDir is where NVIDIA's driver is on systems whose root is read-only, with bin and lib64.
	ownDir = "/usr/local/nvidia"
)

// readNVIDIA asks nvidia-smi for the node's GPUs. A node without the program has none, unless the kernel has their driver.
func (n *Node) readNVIDIA(ctx context.Context) ([]nvidiaGPU, error) {
	ask := func(args ...string) ([]byte, error) { return n.ask(ctx, args...) }
	text, err := ask("-q", "-x")
	if notFound(err) {
		if _, err := os.Stat(filepath.Join(n.cfg.Root, "proc/driver/nvidia/version")); err == nil {
			return nil, errors.New("the kernel has NVIDIA's driver, and nvidia-smi is not installed; install it in the driver's version (Debian: nvidia-smi)")
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	gpus, err := parseLog(text)
	if err != nil || len(gpus) == 0 {
		return nil, err
	}
	// The kernel has no device node for unified memory until somebody asks for it. Where the program is missing, the GPU says so.
	if _, err := os.Stat(filepath.Join(n.cfg.Root, nodeUVM)); err != nil {
		if _, err := n.cfg.Run(ctx, nil, "nvidia-modprobe", "-c", "0", "-u"); err != nil {
			n.cfg.Log.InfoContext(ctx, "the device node for unified memory can't be made", "node", nodeUVM, "error", err)
		}
	}
	for i := range gpus {
		gpus[i].NUMANode = numaNode(n.cfg.Root, gpus[i].PCI)
		if gpus[i].minor < 0 {
			gpus[i].minor = minorOf(n.cfg.Root, gpus[i].PCI)
		}
	}
	// The rest is for people: GPUs are offered without.
	if text, err := ask("--query-gpu=uuid,compute_cap", "--format=csv,noheader"); err == nil {
		addCapabilities(gpus, text)
	}
	if len(gpus) > 1 {
		if text, err := ask("topo", "-m"); err == nil {
			addPeers(gpus, text)
		}
	}
	for i := range gpus {
		if gpus[i].MIG == "enabled" {
			if text, err := ask("mig", "-i", gpus[i].ID, "-lgip"); err == nil {
				gpus[i].MIGProfiles = profiles(text)
			}
		}
	}
	return gpus, n.readSlices(ctx, gpus)
}

// readSlices asks for the UUIDs and the profiles of the slices of GPUs in MIG mode.
func (n *Node) readSlices(ctx context.Context, gpus []nvidiaGPU) error {
	if !slices.ContainsFunc(gpus, func(g nvidiaGPU) bool { return len(g.slices) > 0 }) {
		return nil
	}
	text, err := n.ask(ctx, "-L")
	nameSlices(gpus, text)
	return err
}

// ask runs nvidia-smi, which may be where only a variable leads the loader to its library.
func (n *Node) ask(ctx context.Context, args ...string) ([]byte, error) {
	var env []string
	if _, err := os.Stat(filepath.Join(n.cfg.Root, ownDir, "lib64")); err == nil {
		env = append(env, "LD_LIBRARY_PATH="+strings.Trim(ownDir+"/lib64:"+os.Getenv("LD_LIBRARY_PATH"), ":"))
	}
	text, err := n.cfg.Run(ctx, env, "nvidia-smi", args...)
	if !notFound(err) {
		return text, err
	}
	own := filepath.Join(n.cfg.Root, ownDir, "bin/nvidia-smi")
	if _, missing := os.Stat(own); missing != nil {
		return nil, err
	}
	return n.cfg.Run(ctx, env, own, args...)
}

// parseLog reads the answer to nvidia-smi -q -x. A GPU that can't be used has a problem.
func parseLog(text []byte) ([]nvidiaGPU, error) {
	var log smiLog
	if err := xml.Unmarshal(text, &log); err != nil {
		return nil, fmt.Errorf("nvidia-smi -q -x answered with something else than its XML: %w", err)
	}
	if len(log.GPUs) > mostGPUs {
		return nil, fmt.Errorf("nvidia-smi lists %d GPUs; at most %d are possible", len(log.GPUs), mostGPUs)
	}
	var gpus []nvidiaGPU
	for _, found := range log.GPUs {
		pci := pciOf(found.ID)
		g := nvidiaGPU{minor: -1, index: -1, NodeGPU: api.NodeGPU{
			ID: found.UUID, Model: known(found.Product), PCI: pci, NUMANode: -1, Driver: known(log.Driver), CUDA: known(log.CUDA), MemoryBytes: bytesOf(found.Memory),
		}}
		if minor, err := strconv.Atoi(strings.TrimSpace(found.Minor)); err == nil {
			g.minor = minor
		}
		if mode := strings.ToLower(found.MIG); mode == "enabled" || mode == "disabled" {
			g.MIG = mode
		}
		switch {
		case pci == "":
			return nil, fmt.Errorf("nvidia-smi lists a GPU at %q, which is no PCI address", firstLine(found.ID))
		case !uuidText.MatchString(g.ID): // as of one that has fallen off its bus
			g.ID = pci
			g.say("nvidia-smi can't read its UUID (%q): the kernel's log says why; a reset or a reboot may help", firstLine(found.UUID))
		case known(found.Recovery) != "" && !strings.EqualFold(found.Recovery, "none"):
			g.say("its driver asks for %q after an error; see nvidia-smi -q -i %s", firstLine(found.Recovery), g.PCI)
		}
		if g.MIG == "enabled" {
			var err error
			if g.slices, err = parseSlices(found.Slices); err != nil {
				g.say("%v", err)
			}
		}
		if slices.ContainsFunc(gpus, func(o nvidiaGPU) bool { return o.ID == g.ID }) {
			return nil, fmt.Errorf("nvidia-smi lists GPU %s twice", g.ID)
		}
		gpus = append(gpus, g)
	}
	return gpus, nil
}

func (g *nvidiaGPU) say(format string, args ...any) {
	g.Problems = append(g.Problems, fmt.Sprintf(format, args...))
}

// known is a value of nvidia-smi, "" for one that it does not know.
func known(value string) string {
	value = firstLine(value)
	if value == "N/A" || value == "[N/A]" || strings.Contains(value, "Unknown Error") || value == "ERR!" {
		return ""
	}
	return value
}

// pciOf writes a PCI address as Linux does, with a domain of 4 digits; "" for what is none.
func pciOf(id string) string {
	pci := strings.ToLower(strings.TrimSpace(id))
	if !pciText.MatchString(pci) {
		return ""
	}
	domain, rest, _ := strings.Cut(pci, ":")
	for len(domain) > 4 && domain[0] == '0' {
		domain = domain[1:]
	}
	return domain + ":" + rest
}

// bytesOf reads an amount of memory, such as "143771 MiB"; 0 for what is none.
func bytesOf(text string) int64 {
	number, unit, _ := strings.Cut(strings.TrimSpace(text), " ")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > 1<<32 || unit != "MiB" {
		return 0
	}
	return n << 20
}

// numaNode is the NUMA node that a PCI device is attached to, -1 where the kernel does not know.
func numaNode(root, pci string) int {
	text, err := os.ReadFile(filepath.Join(root, "sys/bus/pci/devices", pci, "numa_node"))
	if err != nil {
		return -1
	}
	node, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || node < 0 {
		return -1
	}
	return node
}

// minorOf is the number of a GPU's device node as the driver tells it, -1 where it does not.
func minorOf(root, pci string) int {
	text, err := os.ReadFile(filepath.Join(root, "proc/driver/nvidia/gpus", pci, "information"))
	if err != nil {
		return -1
	}
	minor, err := strconv.Atoi(valueOf(text, "Device Minor"))
	if err != nil {
		return -1
	}
	return minor
}

// valueOf is the value of a line "name: value" of a file of the driver, "" where it has none.
func valueOf(text []byte, name string) string {
	for line := range strings.Lines(string(text)) {
		if found, value, _ := strings.Cut(line, ":"); strings.TrimSpace(found) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// addCapabilities reads lines of a UUID and a compute capability.
func addCapabilities(gpus []nvidiaGPU, text []byte) {
	reader := csv.NewReader(strings.NewReader(string(text)))
	reader.TrimLeadingSpace, reader.FieldsPerRecord = true, 2
	rows, err := reader.ReadAll()
	if err != nil {
		return
	}
	for _, row := range rows {
		for i := range gpus {
			if gpus[i].ID == row[0] {
				gpus[i].ComputeCapability = known(row[1])
			}
		}
	}
}

// columnText is the name of a GPU in the table of nvidia-smi topo -m.
var columnText = regexp.MustCompile(`^GPU([0-9]{1,2})$`)

// addPeers reads the table of nvidia-smi topo -m: a cell NVn means n links of NVLink. The n-th GPU there is the n-th of the list.
func addPeers(gpus []nvidiaGPU, text []byte) {
	var columns []int
	for line := range strings.Lines(string(text)) {
		cells := strings.Fields(ansi.ReplaceAllString(line, ""))
		if len(cells) == 0 {
			continue
		}
		if columns == nil {
			for _, cell := range cells {
				if at := columnText.FindStringSubmatch(cell); at != nil {
					n, _ := strconv.Atoi(at[1])
					columns = append(columns, n)
				}
			}
			continue
		}
		at := columnText.FindStringSubmatch(cells[0])
		if at == nil {
			continue
		}
		row, _ := strconv.Atoi(at[1])
		for i, cell := range cells[1:] {
			if i < len(columns) && row < len(gpus) && columns[i] < len(gpus) && strings.HasPrefix(cell, "NV") {
				gpus[row].NVLinkPeers = append(gpus[row].NVLinkPeers, gpus[columns[i]].ID)
			}
		}
	}
}

// ansi are the sequences by which nvidia-smi underlines the head of a table.
var ansi = regexp.MustCompile("\x1b\\[[0-9;]*m")

// profileText is the name of a size of slices, such as 1g.18gb+me.
var profileText = regexp.MustCompile(`\bMIG ([0-9]g\.[0-9]+gb(?:[+-][a-z.]+)?)`)

// profiles reads the table of nvidia-smi mig -lgip.
func profiles(text []byte) []string {
	var all []string
	for _, found := range profileText.FindAllSubmatch(text, -1) {
		if name := string(found[1]); !slices.Contains(all, name) && len(all) < mostGPUs {
			all = append(all, name)
		}
	}
	return all
}

// slicesOf is into how many slices a GPU can be divided: 7, but for the smaller ones (NVIDIA Multi-Instance GPU User Guide, "Supported GPUs"); 0 for one
// that can't be.
func slicesOf(g api.NodeGPU) int64 {
	switch {
	case g.MIG == "":
		return 0
	case strings.Contains(g.Model, " A30"), strings.Contains(g.Model, "RTX PRO"):
		return 4
	default:
		return 7
	}
}
