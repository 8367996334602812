package topology

import (
	"cmp"
	"fmt"
	"html"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// The measures of the picture, in pixels of CSS.
const (
	margin       = 24
	boxWidth     = 104
	boxHeight    = 34
	gap          = 16
	levelHeight  = 130
	headerHeight = 64
	hostHeight   = 30
	keyHeight    = 24
	// stub is the room between two columns of hosts, where the line from their leaf runs.
	stub = 40
	// hostColumns is how many hosts stand side by side under their leaf.
	hostColumns = 2
)

// palette are colours for partitions that stay apart for most readers with a colour vision deficiency (Okabe and Ito, "Color Universal
// Design", 2008). Partitions beyond them begin again; each port names its partition besides.
func palette() []string {
	return []string{"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#000000"}
}

// drawing is a picture in the making.
type drawing struct {
	b          strings.Builder
	t          *api.FabricTopology
	partitions []api.FabricPartition
	// x and y are the centres of the boxes, by ID.
	x, y          map[string]int
	width, height int
	drawnHosts    map[string]bool
}

// Draw makes a picture (SVG 1.1) of a fabric: switches by level, their hosts below, links as wide as they are fast and as dark as they are
// loaded, red where they have a fault, and a stripe of colour for each partition of a port. The same topology makes the same picture.
func Draw(t *api.FabricTopology, partitions []api.FabricPartition) string {
	d := &drawing{t: t, partitions: partitions, x: map[string]int{}, y: map[string]int{}, drawnHosts: map[string]bool{}}
	d.layOut()
	columns, _ := d.keyColumns()
	total := d.height + keyHeight*((len(partitions)+columns-1)/columns+2) + margin
	fmt.Fprintf(&d.b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", d.width, total, d.width, total)
	fmt.Fprintf(&d.b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", d.width, total)
	read := ""
	if t.ReadAt != nil {
		read = ", read " + t.ReadAt.UTC().Format("2006-01-02 15:04:05 UTC")
	}
	d.text(margin, 28, 16, "", fmt.Sprintf("Fabric %s (%s)", t.Fabric, t.Technology))
	d.text(margin, 46, 12, "#555555", fmt.Sprintf("%d switches, %d hosts, %d links%s", len(t.Switches), len(t.Hosts), len(t.Links), read))
	for i := range t.Links {
		d.link(&t.Links[i])
	}
	for _, s := range t.Switches {
		d.box(s.ID, s.Name, boxWidth, boxHeight, "#e8eef7", "#34495e", fmt.Sprintf("switch %s, level %d, rail %d", s.ID, s.Level, s.Rail))
	}
	ports := d.portsOfHosts()
	for _, h := range t.Hosts {
		fill := "#ffffff"
		if h.Node == "" {
			fill = "#eeeeee"
		}
		if d.drawnHosts[h.ID] {
			d.box(h.ID, cmp.Or(h.Node, h.Name), boxWidth, hostHeight, fill, "#7f8c8d", "host "+h.Name+" "+h.ID)
			d.stripes(h.ID, ports[h.ID])
		}
	}
	d.key()
	d.b.WriteString("</svg>\n")
	return d.b.String()
}

// layOut gives each leaf a column wide enough for its hosts, and centres the other switches over all of them.
func (d *drawing) layOut() {
	hosts := map[string][]string{}
	for _, l := range d.t.Links {
		if l.To.Host && !l.From.Host && !d.drawnHosts[l.To.ID] {
			hosts[l.From.ID] = append(hosts[l.From.ID], l.To.ID)
			d.drawnHosts[l.To.ID] = true
		}
	}
	byLevel := map[int][]api.FabricSwitch{}
	top := 0
	for _, s := range d.t.Switches {
		byLevel[s.Level] = append(byLevel[s.Level], s)
		top = max(top, s.Level)
	}
	column := hostColumns*boxWidth + (hostColumns-1)*stub
	leaves := byLevel[0]
	slices.SortStableFunc(leaves, func(a, b api.FabricSwitch) int {
		return cmp.Or(cmp.Compare(a.Rail, b.Rail), cmp.Compare(a.Pod, b.Pod), comparePorts(a.Name, b.Name))
	})
	leafY, rows := headerHeight+margin+top*levelHeight, 0
	for i, s := range leaves {
		left := margin + i*(column+2*gap)
		d.x[s.ID], d.y[s.ID] = left+column/2, leafY
		for j, h := range hosts[s.ID] {
			d.x[h] = left + boxWidth/2 + j%hostColumns*(boxWidth+stub)
			d.y[h] = leafY + boxHeight + 50 + j/hostColumns*(hostHeight+gap)
			rows = max(rows, j/hostColumns+1)
		}
	}
	d.width = max(2*margin+len(leaves)*(column+2*gap)-2*gap, 480)
	for level := 1; level <= top; level++ {
		row := byLevel[level]
		for i, s := range row {
			d.x[s.ID], d.y[s.ID] = margin+(2*i+1)*(d.width-2*margin)/(2*len(row)), headerHeight+margin+(top-level)*levelHeight
		}
	}
	d.height = leafY + boxHeight + 50 + rows*(hostHeight+gap)
}

func (d *drawing) text(x, y, size int, color, s string) {
	if color == "" {
		color = "#222222"
	}
	fmt.Fprintf(&d.b, `<text x="%d" y="%d" font-size="%d" fill="%s">%s</text>`+"\n", x, y, size, color, html.EscapeString(s))
}

// box draws a device: its centre is known.
func (d *drawing) box(id, name string, width, height int, fill, stroke, title string) {
	const longest = 16
	if r := []rune(name); len(r) > longest {
		name = string(r[:longest-1]) + "…"
	}
	x, y := d.x[id]-width/2, d.y[id]-height/2
	fmt.Fprintf(&d.b, `<g><title>%s</title><rect x="%d" y="%d" width="%d" height="%d" rx="4" fill="%s" stroke="%s"/><text x="%d" y="%d" text-anchor="middle" font-size="11" fill="#222222">%s</text></g>`+"\n",
		html.EscapeString(title), x, y, width, height, fill, stroke, d.x[id], d.y[id]+4, html.EscapeString(name))
}

// link draws a cable: from the lower edge of the upper box to the upper edge of the lower one.
func (d *drawing) link(l *api.FabricLink) {
	x1, ok1 := d.x[l.From.ID]
	x2, ok2 := d.x[l.To.ID]
	if !ok1 || !ok2 {
		return
	}
	y1, y2 := d.y[l.From.ID], d.y[l.To.ID]
	load := loadOf(l)
	color, width := grey(load), 1+min(int(l.RateBitsPerSecond/100_000_000_000), 4)
	title := fmt.Sprintf("%s: %s", LinkText(*l), rateText(l, load))
	if l.Fault != "" {
		color, title = "#d62728", l.Fault
		width += 2
	}
	if l.To.Host && abs(x1-x2) == (boxWidth+stub)/2 { // a host under its leaf hangs on a line down from the leaf
		fmt.Fprintf(&d.b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s"/>`+"\n", x1, y1, x1, y2, grey(0))
		y1 = y2
	}
	fmt.Fprintf(&d.b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="%d"><title>%s</title></line>`+"\n", x1, y1, x2, y2, color, width, html.EscapeString(title))
}

func abs(n int) int { return max(n, -n) }

// loadOf is the part of its rate that a link carries in its busier direction, 0 to 1.
func loadOf(l *api.FabricLink) float64 {
	if l.RateBitsPerSecond <= 0 {
		return 0
	}
	return min(1, float64(max(l.From.SentBitsPerSecond, l.To.SentBitsPerSecond))/float64(l.RateBitsPerSecond))
}

// grey is light for an idle link and black for a full one.
func grey(load float64) string {
	v := int(200 * (1 - load))
	return fmt.Sprintf("#%02x%02x%02x", v, v, v)
}

func rateText(l *api.FabricLink, load float64) string {
	rate := "rate not known"
	if l.RateBitsPerSecond > 0 {
		rate = api.Rate(l.RateBitsPerSecond).String()
	}
	if l.Width != "" {
		rate = l.Width + " " + l.Speed + ", " + rate
	}
	return fmt.Sprintf("%s, %.0f%% loaded", rate, 100*load)
}

// portsOfHosts are the ports of each host as the fabric knows them.
func (d *drawing) portsOfHosts() map[string][]string {
	ports := map[string][]string{}
	for _, l := range d.t.Links {
		if l.To.Host {
			ports[l.To.ID] = append(ports[l.To.ID], cmp.Or(l.To.At, l.To.Name))
		}
	}
	return ports
}

// stripes marks the partitions of a host's ports along the lower edge of its box.
func (d *drawing) stripes(id string, ports []string) {
	var in []int
	for i, p := range d.partitions {
		if slices.ContainsFunc(ports, func(at string) bool { return slices.Contains(p.Ports, at) }) {
			in = append(in, i)
		}
	}
	if len(in) == 0 {
		return
	}
	width := max(1, boxWidth/len(in))
	for n, i := range in {
		fmt.Fprintf(&d.b, `<rect x="%d" y="%d" width="%d" height="5" fill="%s"><title>%s</title></rect>`+"\n",
			d.x[id]-boxWidth/2+n*width, d.y[id]+hostHeight/2-5, width, colorOf(i), html.EscapeString(partitionText(d.partitions[i])))
	}
}

func colorOf(i int) string { return palette()[i%len(palette())] }

func partitionText(p api.FabricPartition) string {
	text := fmt.Sprintf("%s (%d)", cmp.Or(p.Network, "partition"), p.Number)
	if p.LoadBitsPerSecond > 0 {
		text += fmt.Sprintf(", %.1f Gbit/s", float64(p.LoadBitsPerSecond)/1e9)
	}
	return text
}

// keyColumns is how many entries of the key stand side by side, and how far apart.
func (d *drawing) keyColumns() (columns, step int) {
	const widest = 220
	columns = max(1, (d.width-2*margin)/widest)
	return columns, (d.width - 2*margin) / columns
}

// key explains the colours.
func (d *drawing) key() {
	y := d.height + keyHeight
	d.text(margin, y, 11, "#555555", "Links: light grey is idle, black is full, red has a fault. Stripes are partitions:")
	columns, step := d.keyColumns()
	for i, p := range d.partitions {
		x, row := margin+i%columns*step, y+keyHeight*(i/columns+1)
		fmt.Fprintf(&d.b, `<rect x="%d" y="%d" width="12" height="12" fill="%s"/>`+"\n", x, row-10, colorOf(i))
		d.text(x+18, row, 11, "", partitionText(p))
	}
	if len(d.partitions) == 0 {
		d.text(margin, y+keyHeight, 11, "", "none")
	}
}
