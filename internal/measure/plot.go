package measure

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// plot is one figure, drawn as SVG. Colours come from the page's style sheet, so that a figure follows the page into the dark.
type plot struct {
	// label describes the figure to those who can't see it.
	label          string
	xTitle, yTitle string
	width, height  float64
	x, y           scale
	series         []series
	// rules are horizontal lines with a meaning of their own.
	rules []rule
}

type series struct {
	name string
	// class is the CSS class that colours it: s0 is the baseline, s1 ... the others, ref a reference.
	class  string
	points []plotPoint
	// bars draws the spread as error bars besides the band.
	bars bool
	// loose leaves the points unconnected: their order means nothing.
	loose bool
}

type plotPoint struct{ x, y, low, high float64 }

type rule struct {
	y     float64
	label string
	class string
}

// The margins of a figure, in its own units.
const (
	marginLeft, marginRight, marginTop, marginBottom = 66.0, 16.0, 14.0, 48.0
)

// scale maps values to a range of positions.
type scale struct {
	low, high float64
	log       bool
	ticks     []tick
}

type tick struct {
	at    float64
	label string // empty for a minor tick
}

// at returns the position of v as a fraction of the range.
func (s scale) at(v float64) float64 {
	if s.log {
		return (math.Log(v) - math.Log(s.low)) / (math.Log(s.high) - math.Log(s.low))
	}
	return (v - s.low) / (s.high - s.low)
}

func (p plot) px(v float64) float64 { return marginLeft + p.x.at(v)*(p.width-marginLeft-marginRight) }

func (p plot) py(v float64) float64 {
	return p.height - marginBottom - p.y.at(v)*(p.height-marginTop-marginBottom)
}

// sizeScale is for sizes that grow in powers of two: labels at every third power, or at each value when there are few. Sizes of which one is 0 have a
// linear scale.
func sizeScale(axis Axis, sizes []float64) scale {
	s := scale{low: sizes[0], high: sizes[len(sizes)-1], log: sizes[0] > 0}
	switch {
	case s.low < s.high:
	case s.log:
		s.low, s.high = s.low/2, s.high*2
	default:
		s.high = s.low + 1
	}
	for i, x := range sizes {
		t := tick{at: x}
		if len(sizes) <= 8 || i%3 == 0 {
			t.label = axis.size(x)
			if !axis.Bytes {
				t.label = number(x)
				if x == math.Trunc(x) {
					t.label = fmt.Sprintf("%.0f", x)
				}
			}
		}
		s.ticks = append(s.ticks, t)
	}
	if s.log {
		room := math.Pow(s.high/s.low, 0.02)
		s.low, s.high = s.low/room, s.high*room
	} else {
		room := 0.04 * (s.high - s.low)
		s.low, s.high = s.low-room, s.high+room
	}
	return s
}

// decades is a logarithmic scale whose labels are powers of ten, and 2 and 5 times them when there is room.
func decades(low, high float64) scale {
	span := math.Log10(high / low)
	s := scale{low: low / math.Pow(10, 0.06*max(span, 0.3)), high: high * math.Pow(10, 0.06*max(span, 0.3)), log: true}
	for e := math.Floor(math.Log10(s.low)); e <= math.Ceil(math.Log10(s.high)); e++ {
		for m := 1.0; m < 10; m++ {
			v := m * math.Pow(10, e)
			if v < s.low || v > s.high {
				continue
			}
			t := tick{at: v}
			if m == 1 || (span < 2.2 && (m == 2 || m == 5)) || (span < 0.7 && m < 10) {
				t.label = plain(v)
			}
			s.ticks = append(s.ticks, t)
		}
	}
	return s
}

// plain writes 0.001, 10, 10 000.
func plain(v float64) string {
	text := fmt.Sprintf("%.6g", v) // 3 * 0.1 is 0.30000000000000004
	if v >= 10000 {
		text = fmt.Sprintf("%.0f", v)
		for i := len(text) - 3; i > 0; i -= 3 {
			text = text[:i] + "\u202f" + text[i:]
		}
	}
	return text
}

// linear is a scale with about six round labels.
func linear(low, high float64) scale {
	pad := 0.06 * (high - low)
	low, high = low-pad, high+pad
	raw := (high - low) / 6
	step := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 5, 10} {
		if step*m >= raw {
			step *= m
			break
		}
	}
	s := scale{low: low, high: high}
	digits := max(0, int(math.Ceil(-math.Log10(step)-1e-9)))
	for i := math.Ceil(low / step); i*step <= high; i++ {
		at := i*step + 0 // never -0, which would be written so
		s.ticks = append(s.ticks, tick{at, fmt.Sprintf("%.*f", digits, at)})
	}
	return s
}

// svg draws the figure.
func (p plot) svg() string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">`+"\n", p.width, p.height, html.EscapeString(p.label))
	p.frame(&b)
	for _, s := range p.series {
		p.band(&b, s)
	}
	for _, r := range p.rules {
		y := p.py(r.y)
		fmt.Fprintf(&b, `<path class="rule %s" d="M%.1f %.1fH%.1f"/>`, r.class, marginLeft, y, p.width-marginRight)
		below := 0.0 // labels of rules below 1 stand below them, so that close rules do not share a place
		if r.y < 1 {
			below = 18
		}
		fmt.Fprintf(&b, `<text class="rulelabel %s" x="%.1f" y="%.1f">%s</text>`+"\n", r.class,
			marginLeft+8, y-5+below, html.EscapeString(r.label))
	}
	for _, s := range p.series {
		p.line(&b, s)
	}
	p.legend(&b)
	b.WriteString("</svg>\n")
	return b.String()
}

func (p plot) frame(b *strings.Builder) {
	left, right, top, bottom := marginLeft, p.width-marginRight, marginTop, p.height-marginBottom
	for _, t := range p.y.ticks {
		y := p.py(t.at)
		if t.label == "" {
			fmt.Fprintf(b, `<path class="tick" d="M%.1f %.1fh4"/>`, left, y)
			continue
		}
		fmt.Fprintf(b, `<path class="grid" d="M%.1f %.1fH%.1f"/>`, left, y, right)
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="end" dy=".35em">%s</text>`+"\n", left-8, y, t.label)
	}
	for _, t := range p.x.ticks {
		x := p.px(t.at)
		if t.label == "" {
			fmt.Fprintf(b, `<path class="tick" d="M%.1f %.1fv-4"/>`, x, bottom)
			continue
		}
		fmt.Fprintf(b, `<path class="grid" d="M%.1f %.1fV%.1f"/>`, x, top, bottom)
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="middle">%s</text>`+"\n", x, bottom+18, t.label)
	}
	fmt.Fprintf(b, `<rect class="frame" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, left, top, right-left, bottom-top)
	fmt.Fprintf(b, `<text class="title" x="%.1f" y="%.1f" text-anchor="middle">%s</text>`, (left+right)/2, p.height-8, html.EscapeString(p.xTitle))
	fmt.Fprintf(b, `<text class="title" transform="translate(15 %.1f) rotate(-90)" text-anchor="middle">%s</text>`+"\n",
		(top+bottom)/2, html.EscapeString(p.yTitle))
}

// band fills the area between low and high.
func (p plot) band(b *strings.Builder, s series) {
	if len(s.points) < 2 || s.loose {
		return
	}
	var forth, back strings.Builder
	for i, q := range s.points {
		fmt.Fprintf(&forth, "%c%.1f %.1f", "ML"[min(i, 1)], p.px(q.x), p.py(q.high))
		last := s.points[len(s.points)-1-i]
		fmt.Fprintf(&back, "L%.1f %.1f", p.px(last.x), p.py(last.low))
	}
	fmt.Fprintf(b, `<path class="band %s" d="%s%sZ"/>`+"\n", s.class, forth.String(), back.String())
}

func (p plot) line(b *strings.Builder, s series) {
	var path strings.Builder
	for i, q := range s.points {
		x, y := p.px(q.x), p.py(q.y)
		fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(i, 1)], x, y)
		if s.bars {
			fmt.Fprintf(b, `<path class="bar %s" d="M%.1f %.1fV%.1fm-3 0h6M%.1f %.1fh6"/>`, s.class, x, p.py(q.low), p.py(q.high), x-3, p.py(q.low))
		}
	}
	if !s.loose {
		fmt.Fprintf(b, `<path class="line %s" d="%s"/>`, s.class, path.String())
	}
	for _, q := range s.points {
		p.mark(b, s.class, p.px(q.x), p.py(q.y))
	}
	b.WriteByte('\n')
}

// mark draws a point; the shapes differ so that the figure can be read without colour.
func (p plot) mark(b *strings.Builder, class string, x, y float64) {
	switch class {
	case "s0":
		fmt.Fprintf(b, `<circle class="mark %s" cx="%.1f" cy="%.1f" r="3.2"/>`, class, x, y)
	case "s1":
		fmt.Fprintf(b, `<path class="mark %s" d="M%.1f %.1fh6.2v6.2h-6.2z"/>`, class, x-3.1, y-3.1)
	case "ref":
	case "each":
		fmt.Fprintf(b, `<circle class="mark %s" cx="%.1f" cy="%.1f" r="2.6"/>`, class, x, y)
	default:
		fmt.Fprintf(b, `<path class="mark %s" d="M%.1f %.1fl3.8 6.6h-7.6z"/>`, class, x, y-4)
	}
}

// legend stands at the top left, where curves that rise with size leave room; a figure of one series needs none.
func (p plot) legend(b *strings.Builder) {
	if len(p.series) < 2 {
		return
	}
	for i, s := range p.series {
		x, y := marginLeft+14, marginTop+20+float64(i)*19
		if !s.loose || s.bars {
			fmt.Fprintf(b, `<path class="line %s" d="M%.1f %.1fh26"/>`, s.class, x, y)
		}
		p.mark(b, s.class, x+13, y)
		fmt.Fprintf(b, `<text class="legend" x="%.1f" y="%.1f" dy=".35em">%s</text>`+"\n", x+34, y, html.EscapeString(s.name))
	}
}
