package cycle

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// What BMCs are called with.
const (
	bmcPort = 8000
	bmcUser = "bench"
	// Password is that of all BMCs.
	Password = "bench"
	// bmcAnswer is how long a fake BMC takes for an answer; real ones take longer.
	bmcAnswer = 20 * time.Millisecond
)

// BMCs are the Redfish services (DSP0266) of many machines, each at an address of its own in 127.0.0.0/8, as far as powering a machine
// needs them. They count what they are asked.
type BMCs struct {
	// powered is called when a machine goes on, cut when its power is cut; nil: nobody minds.
	powered, cut func(i int)
	server       *http.Server

	mu    sync.Mutex
	on    map[int]bool
	asked int
}

// Control is how a site reaches the BMC of machine i.
func Control(i int) api.PowerControl {
	address := netip.AddrFrom4([4]byte{127, 77, byte(i >> 8), byte(i)})
	return api.PowerControl{Kind: api.PowerRedfish, Address: fmt.Sprintf("http://%s:%d", address, bmcPort), User: bmcUser}
}

// StartBMCs starts the BMCs of all machines of a fleet. powered is called when one goes on, cut when its power is cut.
func StartBMCs(ctx context.Context, powered, cut func(i int)) (*BMCs, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("0.0.0.0:%d", bmcPort))
	if err != nil {
		return nil, err
	}
	b := &BMCs{powered: powered, cut: cut, on: map[int]bool{}}
	b.server = &http.Server{Handler: b, ReadHeaderTimeout: time.Minute, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	go func() { _ = b.server.Serve(listener) }()
	return b, nil
}

// Close ends the BMCs.
func (b *BMCs) Close() error { return b.server.Close() }

// Set changes a machine's power, as its own system does, and reports whether that changes anything.
func (b *BMCs) Set(i int, on bool) (changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	changed = b.on[i] != on
	b.on[i] = on
	return changed
}

// On counts the machines that are on.
func (b *BMCs) On() (count int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, on := range b.on {
		if on {
			count++
		}
	}
	return count
}

// Requests counts what all BMCs were asked.
func (b *BMCs) Requests() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked
}

// ServeHTTP answers as the BMC whose address was asked.
func (b *BMCs) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	address, err := netip.ParseAddrPort(local.String())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	octets := address.Addr().Unmap().As4()
	i := int(octets[2])<<8 | int(octets[3])
	b.mu.Lock()
	b.asked++
	power := "Off"
	if b.on[i] {
		power = "On"
	}
	b.mu.Unlock()
	if pause(r.Context(), bmcAnswer) != nil {
		return
	}
	const system = "/redfish/v1/Systems/1"
	type values = map[string]any
	path := func(p string) values { return values{"@odata.id": p} }
	answer := func(v values) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /redfish/v1/":
		answer(values{"Systems": path("/redfish/v1/Systems"), "Links": values{"Sessions": path("/redfish/v1/SessionService/Sessions")}})
	case "POST /redfish/v1/SessionService/Sessions":
		w.Header().Set("X-Auth-Token", "token")
		w.Header().Set("Location", "/redfish/v1/SessionService/Sessions/1")
		w.WriteHeader(http.StatusCreated)
	case "GET /redfish/v1/Systems":
		answer(values{"Members": []any{path(system)}})
	case "GET " + system:
		answer(values{
			"@odata.id": system, "Id": "1", "PowerState": power, "Boot": values{"BootSourceOverrideTarget@Redfish.AllowableValues": []string{"None", "Pxe"}},
			"Actions": values{"#ComputerSystem.Reset": values{
				"target": system + "/Reset", "ResetType@Redfish.AllowableValues": []string{"On", "ForceOff", "GracefulShutdown"},
			}},
		})
	case "POST " + system + "/Reset":
		var order struct{ ResetType string }
		_ = json.NewDecoder(r.Body).Decode(&order)
		on := order.ResetType == "On"
		switch changed := b.Set(i, on); {
		case changed && on:
			b.powered(i)
		case changed && b.cut != nil:
			b.cut(i)
		}
		w.WriteHeader(http.StatusNoContent)
	default: // a boot override, or the end of a session
		w.WriteHeader(http.StatusNoContent)
	}
}
