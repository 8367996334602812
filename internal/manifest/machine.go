package manifest

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Limits of machines.
const (
	MaxMACs = 16
	// maxMachines bounds one file of machines, and MaxMachineBytes is room for them.
	maxMachines     = 10_000
	MaxMachineBytes = 8 << 20
	MaxPassword     = 256
	MaxUserName     = 64
	// MaxPrefix leaves room for the number behind it.
	MaxPrefix     = 48
	MaxUses       = 10_000
	minTokenSpan  = api.Duration(time.Minute)
	maxTokenSpan  = api.Duration(365 * 24 * time.Hour)
	defaultUses   = 1
	defaultExpiry = api.Duration(24 * time.Hour)
)

// The words of a machine's description.
var (
	powerKinds = []string{string(api.PowerRedfish), string(api.PowerIPMI), string(api.PowerWakeOnLAN), string(api.PowerManual)}
	firmwares  = []string{string(api.FirmwareBIOS), string(api.FirmwareUEFI)}
)

// ConsoleSOL is the console by IPMI's serial over LAN.
const ConsoleSOL = "ipmi-sol"

// NormalizeMachine checks what is said of a machine and brings it into its normal form: MACs in lower case with colons, the BMC's address
// with its port. The error is an *Invalid that names every problem.
func NormalizeMachine(req api.EnrollRequest, src *Source) (api.EnrollRequest, error) {
	n := normalizer{src: src}
	req = n.machine("", req)
	return req, n.inOrder()
}

// DecodeMachines reads a file of machines, gives them what stands at its top, and normalizes each. The error is an *Invalid.
func DecodeMachines(data []byte, format Format) ([]api.EnrollRequest, error) {
	list := api.EnrollList{Inspect: true}
	src, err := decodeWith(data, textForm{format: format, most: MaxMachineBytes, example: `machines: [{name: n1, spec: {macs: ["52:54:00:12:34:56"], power: {kind: wol}}}]`}, &list)
	if err != nil {
		return nil, err
	}
	n := normalizer{src: src}
	if len(list.Machines) == 0 || len(list.Machines) > maxMachines {
		n.add("machines", strconv.Itoa(len(list.Machines)), "lists %d machines; give 1 to %d", len(list.Machines), maxMachines)
		return nil, n.err()
	}
	names, macs := map[string]int{}, map[string]int{}
	for i := range list.Machines {
		at := fmt.Sprintf("machines[%d]", i)
		m := n.machine(at, inherit(list, at, list.Machines[i], src))
		if hasBMC(m.Spec.Power.Kind) && m.Password == "" && !src.Has(at+".password") && !src.Has("password") {
			n.missing(at, "password", `is missing; give the BMC's, here or at the top of the file ("" where it has none)`)
		}
		if j, twice := names[m.Name]; twice && m.Name != "" {
			n.add(at+".name", m.Name, "%q is also the name of machines[%d]; give every machine its own name", m.Name, j)
		}
		names[m.Name] = i
		for k, mac := range m.Spec.MACs {
			if j, twice := macs[mac]; twice && j != i {
				n.add(fmt.Sprintf("%s.spec.macs[%d]", at, k), mac, "%s is also a MAC of machines[%d]; two machines can't share a MAC", mac, j)
			}
			macs[mac] = i
		}
		list.Machines[i] = m
	}
	return list.Machines, n.inOrder()
}

func hasBMC(kind api.PowerKind) bool { return kind == api.PowerIPMI || kind == api.PowerRedfish }

// inOrder is the error of what was found, in the order of the lines.
func (n *normalizer) inOrder() error {
	slices.SortStableFunc(n.problems, func(a, b api.FieldProblem) int { return a.Line - b.Line })
	return n.err()
}

// inherit gives a machine what stands at the top of the file and it does not say itself.
func inherit(list api.EnrollList, at string, m api.EnrollRequest, src *Source) api.EnrollRequest {
	p := &m.Spec.Power
	p.Kind = cmp.Or(p.Kind, list.Power.Kind)
	if hasBMC(p.Kind) { // what is said of the others' BMCs means nothing to a machine without one
		p.Address, p.User = cmp.Or(p.Address, list.Power.Address), cmp.Or(p.User, list.Power.User)
		if !src.Has(at + ".password") {
			m.Password = list.Password
		}
	}
	if p.Kind == list.Power.Kind {
		p.System, p.CertificateSHA256 = cmp.Or(p.System, list.Power.System), cmp.Or(p.CertificateSHA256, list.Power.CertificateSHA256)
	}
	if m.Spec.Labels == nil {
		m.Spec.Labels = list.Labels
	}
	if !src.Has(at + ".inspect") {
		m.Inspect = list.Inspect
	}
	return m
}

func (n *normalizer) machine(at string, req api.EnrollRequest) api.EnrollRequest {
	if req.Name == "" && !n.src.Has(join(at, "name")) {
		n.missing(at, "name", "is missing; give a name of lower-case letters, digits and '-'")
	} else {
		n.label(join(at, "name"), req.Name, MaxLabel)
	}
	spec := join(at, "spec")
	req.Spec.MACs = n.macs(spec+".macs", req.Spec.MACs)
	if f := req.Spec.Firmware; f != "" && f != api.FirmwareBIOS && f != api.FirmwareUEFI {
		n.add(spec+".firmware", string(f), "%q is not a kind of firmware; %s If omitted, the first boot determines it", f, sentence(oneOf(string(f), firmwares)))
	}
	req.Spec.Power = n.power(spec+".power", req.Spec.Power, true)
	n.password(join(at, "password"), req.Password, req.Spec.Power)
	n.console(spec+".console", req.Spec)
	n.labels(spec+".labels", req.Spec.Labels)
	if req.Spec.TrunkMAC != "" {
		req.Spec.TrunkMAC = n.mac(spec+".trunk_mac", req.Spec.TrunkMAC)
	}
	n.adapters(spec+".adapters", req.Spec.Adapters)
	n.passthrough(spec+".passthrough", req.Spec.Passthrough)
	req.Spec.SwitchPorts = n.switchPorts(spec+".switch_ports", req.Spec.SwitchPorts)
	return req
}

// MaxSwitchPorts is more than any machine has NICs.
const MaxSwitchPorts = 64

// switchPortForm is a switch with one of its ports.
var switchPortForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}/[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}$`)

// switchPorts checks which ports of switches a machine's NICs are connected to.
func (n *normalizer) switchPorts(path string, ports []api.SwitchPort) []api.SwitchPort {
	if len(ports) > MaxSwitchPorts {
		n.add(path, strconv.Itoa(len(ports)), "has %d entries; at most %d are possible", len(ports), MaxSwitchPorts)
		return nil
	}
	var normal []api.SwitchPort
	for i, p := range ports {
		at := fmt.Sprintf("%s[%d]", path, i)
		p.MAC = n.mac(at+".mac", p.MAC)
		n.label(at+".cell", p.Cell, MaxLabel)
		if !switchPortForm.MatchString(p.Port) {
			n.add(at+".port", p.Port, "%q is no port of a switch; write SWITCH/PORT, such as leaf1/swp7", p.Port)
		}
		if slices.ContainsFunc(normal, func(o api.SwitchPort) bool { return o.MAC == p.MAC || o.Cell == p.Cell && o.Port == p.Port }) {
			n.add(at, p.Port, "names a NIC or a port that is listed before; a cable has two ends")
		}
		normal = append(normal, p)
	}
	return normal
}

const (
	// MaxAdapters is more than any machine has slots for.
	MaxAdapters = 32
	// MaxFunctions is the highest number of virtual functions that an adapter can have (PCI Express Base Specification 5.0, 9.3.3.5).
	MaxFunctions = 65535
)

// pciAddress is domain:bus:device.function.
var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)

// adapters checks which adapters of a machine its members may have.
func (n *normalizer) adapters(path string, adapters []api.MachineAdapter) {
	if len(adapters) > MaxAdapters {
		n.add(path, strconv.Itoa(len(adapters)), "has %d entries; at most %d are possible", len(adapters), MaxAdapters)
		return
	}
	seen := map[string]bool{}
	for i, a := range adapters {
		at := fmt.Sprintf("%s[%d]", path, i)
		switch {
		case !pciAddress.MatchString(a.PCI):
			n.add(at+".pci", a.PCI, "%q is not a PCI address; write one such as 0000:3b:00.0, as lspci -D shows it", a.PCI)
		case seen[a.PCI]:
			n.add(at+".pci", a.PCI, "%s is listed twice; an adapter is connected to one cell", a.PCI)
		}
		seen[a.PCI] = true
		n.label(at+".cell", a.Cell, MaxLabel)
		if a.VirtualFunctions < 0 || a.VirtualFunctions > MaxFunctions {
			n.add(at+".virtual_functions", strconv.Itoa(a.VirtualFunctions), "%d is not from 0 to %d", a.VirtualFunctions, MaxFunctions)
		}
	}
}

// passthrough checks what virtual machines get of a machine's GPUs.
func (n *normalizer) passthrough(path string, p *api.MachinePassthrough) {
	if p == nil {
		return
	}
	if len(p.GPUs) == 0 || len(p.GPUs) > MaxNodeDevices {
		n.add(path+".gpus", strconv.Itoa(len(p.GPUs)), "has %d entries; write 1 to %d, such as all", len(p.GPUs), MaxNodeDevices)
	}
	for i, what := range p.GPUs {
		if !modelText.MatchString(what) && !pciAddress.MatchString(what) {
			n.add(fmt.Sprintf("%s.gpus[%d]", path, i), what, "%q is neither the PCI address of a GPU nor words of its model, nor all", api.Shorten(what, 64))
		}
	}
	if !slices.Contains([]string{"", "proven", "reset"}, p.Clearing) {
		n.add(path+".clearing", p.Clearing, "%q is no way to clear the memory of GPUs; write proven or reset", api.Shorten(p.Clearing, 64))
	}
}

// sentence ends a text as one.
func sentence(text string) string {
	if strings.HasSuffix(text, "?") {
		return text
	}
	return text + "."
}

func (n *normalizer) macs(path string, macs []string) []string {
	if len(macs) == 0 {
		n.add(path, "", "is missing; give the MAC address of the NIC it boots from, and those of other provisioning NICs behind it")
		return nil
	}
	if len(macs) > MaxMACs {
		n.add(path, strconv.Itoa(len(macs)), "has %d entries; at most %d are possible", len(macs), MaxMACs)
		return nil
	}
	normal, seen := make([]string, len(macs)), map[string]bool{}
	for i, text := range macs {
		at := fmt.Sprintf("%s[%d]", path, i)
		normal[i] = n.mac(at, text)
		if seen[normal[i]] {
			n.add(at, text, "%s is listed twice; keep one", text)
		}
		seen[normal[i]] = normal[i] != ""
	}
	return normal
}

// mac is the address of a NIC in its normal form, or "".
func (n *normalizer) mac(at, text string) string {
	mac, err := net.ParseMAC(text)
	switch {
	case err != nil || len(mac) != 6:
		n.add(at, text, "%q is not a MAC address; write one such as 52:54:00:12:34:56", text)
		return ""
	case mac[0]&1 != 0: // IEEE 802-2014, section 8.2.2
		n.add(at, text, "%s is a group address, which no NIC has; give the NIC's own address", text)
		return ""
	case mac.String() == "00:00:00:00:00:00":
		n.add(at, text, "is all zeros; give the NIC's own address")
		return ""
	}
	return mac.String()
}

// power checks how a machine's power is controlled. A BMC must have an address unless inspection is to find it.
func (n *normalizer) power(path string, p api.PowerControl, addressed bool) api.PowerControl {
	bmc := hasBMC(p.Kind)
	switch {
	case p.Kind == "":
		n.missing(path, "kind", "is missing; use "+strings.Join(powerKinds, ", "))
		return p
	case !bmc && p.Kind != api.PowerWakeOnLAN && p.Kind != api.PowerManual:
		n.add(path+".kind", string(p.Kind), "%q is not a kind of power control; %s", p.Kind, oneOf(string(p.Kind), powerKinds))
		return p
	case !bmc:
		for _, field := range []struct{ name, value string }{
			{"address", p.Address}, {"system", p.System}, {"user", p.User}, {"certificate_sha256", p.CertificateSHA256},
		} {
			if field.value != "" {
				n.add(path+"."+field.name, field.value, "is given, but %s has no BMC; omit it", kindText(p.Kind))
			}
		}
		return p
	}
	switch {
	case p.Address == "" && addressed:
		n.missing(path, "address", "is missing; give the BMC's address")
	case p.Address != "":
		p.Address = n.bmcAddress(path+".address", p)
	}
	if p.User == "" {
		n.missing(path, "user", "is missing; give the user to log in to the BMC as")
	} else if len(p.User) > MaxUserName {
		n.add(path+".user", p.User, "is %d bytes long; use at most %d", len(p.User), MaxUserName)
	}
	if p.System != "" && p.Kind != api.PowerRedfish {
		n.add(path+".system", p.System, "is given, but only redfish has systems; omit it")
	}
	if pin := p.CertificateSHA256; pin != "" {
		p.CertificateSHA256 = strings.ToLower(strings.ReplaceAll(pin, ":", ""))
		if sum, err := hex.DecodeString(p.CertificateSHA256); err != nil || len(sum) != 32 {
			n.add(path+".certificate_sha256", pin, "is not a SHA-256 digest; give 64 hexadecimal digits, with or without colons")
		} else if !strings.HasPrefix(p.Address, "https://") && p.Address != "" {
			n.add(path+".certificate_sha256", pin, "is given, but the address is not an https URL")
		}
	}
	return p
}

func kindText(kind api.PowerKind) string {
	if kind == api.PowerWakeOnLAN {
		return "Wake-on-LAN"
	}
	return fmt.Sprintf("kind %q", kind)
}

// bmcAddress checks a BMC's address: HOST[:PORT] for IPMI (port 623, IPMI 2.0 section 13.1.2), a URL for Redfish.
func (n *normalizer) bmcAddress(path string, p api.PowerControl) string {
	if p.Kind == api.PowerRedfish {
		u, err := url.Parse(p.Address)
		switch {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
			n.add(path, p.Address, "%q is not a URL; write https://HOST[:PORT]", p.Address)
		case u.User != nil:
			n.add(path, "", "holds a user; give user and password in their own fields")
		case u.RawQuery != "" || u.Fragment != "":
			n.add(path, p.Address, "%q has more than a host; write https://HOST[:PORT]", p.Address)
		}
		return strings.TrimSuffix(p.Address, "/")
	}
	address := p.Address
	if _, _, err := net.SplitHostPort(address); err != nil {
		address = net.JoinHostPort(strings.Trim(address, "[]"), "623")
	}
	if problem := hostPortProblem(address); problem != "" {
		n.add(path, p.Address, "%q %s; write HOST or HOST:PORT", p.Address, problem)
	}
	return address
}

// hostPortProblem tells why an address is not HOST:PORT, or "".
func hostPortProblem(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return "names no host"
	}
	if strings.ContainsAny(host, " /\\@?#") {
		return "holds a character that host names can't have"
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
		return "has no port from 1 to 65535"
	}
	return ""
}

func (n *normalizer) password(path, password string, p api.PowerControl) {
	switch {
	case password == "":
	case p.Kind == api.PowerWakeOnLAN || p.Kind == api.PowerManual:
		n.add(path, "", "is given, but %s has no BMC; omit it", kindText(p.Kind))
	case len(password) > MaxPassword:
		n.add(path, "", "is %d bytes long; use at most %d", len(password), MaxPassword)
	case p.Kind == api.PowerIPMI && len(password) > 20: // IPMI 2.0, section 22.30
		n.add(path, "", "is %d bytes long; IPMI 2.0 allows at most 20", len(password))
	}
}

// console checks where a machine's serial console is.
func (n *normalizer) console(path string, spec api.MachineSpec) {
	switch address, tcp := strings.CutPrefix(spec.Console, "tcp://"); {
	case spec.Console == "":
	case spec.Console == ConsoleSOL:
		if spec.Power.Kind != api.PowerIPMI {
			n.add(path, spec.Console, "is by IPMI, but the machine's power is controlled by %q; give tcp://HOST:PORT, or omit it", spec.Power.Kind)
		}
	case !tcp:
		n.add(path, spec.Console, "%q is not a console; write tcp://HOST:PORT or %s", spec.Console, ConsoleSOL)
	default:
		if problem := hostPortProblem(address); problem != "" {
			n.add(path, spec.Console, "%q %s; write tcp://HOST:PORT", spec.Console, problem)
		}
	}
}

// NormalizeEnrollToken checks a request for an enrolment token and fills in its defaults. The error is an *Invalid.
func NormalizeEnrollToken(req api.EnrollTokenRequest, src *Source) (api.EnrollTokenRequest, error) {
	n := normalizer{src: src}
	if req.Prefix == "" {
		n.add("prefix", "", "is missing; give the prefix of the names PREFIX1, PREFIX2 ...")
	} else if problem := LabelProblem(req.Prefix+"1", MaxPrefix+1); problem != "" {
		n.add("prefix", req.Prefix, "makes names like %q, which %s", req.Prefix+"1", problem)
	}
	n.atLeast("uses", &req.Uses, defaultUses, MaxUses, "use")
	n.span("valid_for", &req.ValidFor, defaultExpiry, minTokenSpan, maxTokenSpan)
	if req.Power.Kind == "" && !src.Has("power") {
		req.Power.Kind = api.PowerManual
	}
	req.Power = n.power("power", req.Power, false)
	n.password("password", req.Password, req.Power)
	return req, n.err()
}

// CheckPower refuses a power request that can't be meant. The error is an *Invalid.
func CheckPower(req api.NodePowerRequest, src *Source) error {
	n := normalizer{src: src}
	actions := []string{string(api.PowerActionOn), string(api.PowerActionOff), string(api.PowerActionCycle)}
	switch req.Action {
	case api.PowerActionOn, api.PowerActionCycle:
		if req.Environment != "" || src.Has("environment") {
			n.label("environment", req.Environment, MaxLabel)
		} else if req.Action == api.PowerActionOn {
			n.add("environment", "", "is missing; name the environment to boot")
		}
	case api.PowerActionOff:
		if req.Environment != "" {
			n.add("environment", req.Environment, "is given, but power off boots nothing; omit it")
		}
	case "":
		n.add("action", "", "is missing; use %s", strings.Join(actions, ", "))
	default:
		n.add("action", string(req.Action), "%q is not a power action; %s", req.Action, oneOf(string(req.Action), actions))
	}
	return n.err()
}

// CheckSelector refuses labels that nothing can carry. The error is an *Invalid.
func CheckSelector(labels map[string]string, src *Source) error {
	n := normalizer{src: src}
	n.labels("selector", labels)
	return n.err()
}
