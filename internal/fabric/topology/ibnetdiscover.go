package topology

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// The lines of ibnetdiscover's topology file (ibnetdiscover(8), "TOPOLOGY FILE FORMAT"). A device is a line of its kind, the count of its
// ports and its ID in quotation marks, then its ports, one a line:
//
//	Switch	24 "S-0008f10400410015"		# "ISR9024" base port 0 lid 6 lmc 0
//	[4]	"H-0008f10403961354"[1](8f10403961355) 		# "n1 HCA-1" lid 4 4xSDR
//
//	Ca	2 "H-0008f10403961354"		# "n1 HCA-1"
//	[1](8f10403961355) 	"S-0008f10400410015"[4]		# lid 4 lmc 1 "ISR9024" lid 6 4xSDR
var (
	deviceLine = regexp.MustCompile(`^(Switch|Ca|Rt)\s+(\d+) "[SHR]-([0-9a-fA-F]{1,16})"\s*#?\s*(.*)$`)
	portLine   = regexp.MustCompile(`^\[(\d+)\](?:\[ext \d+\])?(?:\(([0-9a-fA-F]+)\))?\s+"[SHR]-([0-9a-fA-F]{1,16})"\[(\d+)\](?:\[ext \d+\])?(?:\(([0-9a-fA-F]+)\))?\s*#?\s*(.*)$`)
	// quoted is a description: the last quotation mark ends it, as one may be within it.
	quoted   = regexp.MustCompile(`"(.*)"`)
	rateWord = regexp.MustCompile(`(\d+)x([A-Z]+\d*)\s*$`)
	assigned = regexp.MustCompile(`^(vendid|devid|sysimgguid|switchguid|caguid|rtguid)=`)
	// chassisOf are the titles that grouping by chassis adds.
	chassisOf = regexp.MustCompile(`^(Chassis |Non-Chassis Nodes|Spine |Line |External )`)
)

// laneRates are the rates of one lane by the name of its speed, in bits per second, as the rates of links are commonly given: 4xHDR is
// 200 Gbit/s (IBA 1.4, section 5.2 and its volume 2).
func laneRate(speed string) int64 {
	const mega = 1_000_000
	return map[string]int64{
		"SDR": 2500 * mega, "DDR": 5000 * mega, "QDR": 10_000 * mega, "FDR10": 10_000 * mega, "FDR": 14_000 * mega, "EDR": 25_000 * mega,
		"HDR": 50_000 * mega, "NDR": 100_000 * mega, "XDR": 200_000 * mega,
	}[speed]
}

// Parse reads what ibnetdiscover prints. A line that it can't read is an error: half a topology would place members wrongly.
func Parse(text string) (api.FabricTopology, error) {
	b, number := newBuilder(), 0
	var device api.FabricEnd
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimRight(line, " \t\r\n")
		switch {
		case line == "" || strings.HasPrefix(line, "#") || assigned.MatchString(line) || chassisOf.MatchString(line):
			continue
		case strings.HasPrefix(line, "["):
			if err := b.port(device, line); err != nil {
				return api.FabricTopology{}, fmt.Errorf("line %d of the topology: %w", number, err)
			}
		default:
			end, err := b.device(line)
			if err != nil {
				return api.FabricTopology{}, fmt.Errorf("line %d of the topology: %w", number, err)
			}
			device = end
		}
		if len(b.switches)+len(b.hosts) > maxDevices || len(b.links) > maxLinks {
			return api.FabricTopology{}, fmt.Errorf("the topology has more than %d devices or %d links, which no subnet has", maxDevices, maxLinks)
		}
	}
	for _, l := range b.links {
		for _, e := range []api.FabricEnd{l.From, l.To} {
			if b.switches[e.ID] == nil && b.hosts[e.ID] == nil {
				return api.FabricTopology{}, fmt.Errorf("the topology has a link to device %s, but not the device", e.ID)
			}
		}
	}
	t := b.finish()
	t.Technology = api.FabricInfiniBand
	return t, nil
}

// device reads the line that begins a device.
func (b *builder) device(line string) (api.FabricEnd, error) {
	m := deviceLine.FindStringSubmatch(line)
	if m == nil {
		return api.FabricEnd{}, fmt.Errorf("%q is neither a device nor a port", clip(line))
	}
	id, name := guid(m[3]), description(m[4])
	if m[1] == "Switch" {
		ports, err := strconv.Atoi(m[2])
		if err != nil || ports > 255 {
			return api.FabricEnd{}, fmt.Errorf("%q: a switch has at most 255 ports", clip(line))
		}
		b.switches[id] = &api.FabricSwitch{ID: id, Name: name, Ports: ports}
		return api.FabricEnd{ID: id}, nil
	}
	b.hosts[id] = &api.FabricHost{ID: id, Name: name}
	return api.FabricEnd{ID: id, Host: true}, nil
}

// port reads the line of a port, which is one end of a link.
func (b *builder) port(device api.FabricEnd, line string) error {
	m := portLine.FindStringSubmatch(line)
	switch {
	case m == nil:
		return fmt.Errorf("%q is not a port", clip(line))
	case device.ID == "":
		return fmt.Errorf("port %q comes before any device", clip(line))
	}
	l := api.FabricLink{From: device, To: api.FabricEnd{ID: guid(m[3]), Port: m[4]}}
	l.From.Port = m[1]
	l.To.Host = strings.Contains(line, `"H-`) || strings.Contains(line, `"R-`)
	if l.From.Host && m[2] != "" {
		l.From.At = guid(m[2])
	}
	if l.To.Host && m[5] != "" {
		l.To.At = guid(m[5])
	}
	if r := rateWord.FindStringSubmatch(m[6]); r != nil {
		lanes, _ := strconv.Atoi(r[1])
		l.Width, l.Speed = r[1]+"x", r[2]
		if lanes <= 12 { // the widest link (IBA 1.4, section 5.2)
			l.RateBitsPerSecond = int64(lanes) * laneRate(r[2])
		}
	}
	b.link(l)
	return nil
}

// description is the name that a device gives itself, without what a terminal would obey.
func description(text string) string {
	m := quoted.FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, strings.ToValidUTF8(m[1], "")))
}

// guid writes a GUID in 16 lower-case hexadecimal digits.
func guid(text string) string {
	text = strings.ToLower(strings.TrimPrefix(text, "0x"))
	return strings.Repeat("0", max(0, 16-len(text))) + text
}

// clip bounds what an error shows of a line.
func clip(line string) string {
	const most = 80
	if len(line) > most {
		return line[:most] + "..."
	}
	return line
}
