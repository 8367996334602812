package apiserver

import (
	"net/http"
	"reflect"
	"runtime"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// Version is what this program says about itself.
func Version() api.Version {
	return api.Version{Version: config.Version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
}

// schemaPrefix is where the document keeps its schemas.
const schemaPrefix = "#/components/schemas/"

// apiConfig sets huma up: JSON only, no pages, errors as problems of ours.
func apiConfig(s *Server) huma.Config {
	registry := huma.NewMapRegistry(schemaPrefix, huma.DefaultSchemaNamer)
	for of, as := range schemaAliases() {
		registry.RegisterTypeAlias(of, as)
	}
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "Nearmetal", Version: config.Version(),
				Description: "On-demand, isolated HPC clusters. Errors are problem details (RFC 9457) with a stable `code`; " +
					"docs/api-errors.md lists all of them. Watches are server-sent events.",
				License: &huma.License{Name: "Apache-2.0", Identifier: "Apache-2.0"},
			},
			Components: &huma.Components{
				Schemas: registry,
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"token": {Type: "http", Scheme: "bearer", Description: "A token without its last part (the pin). The Unix socket needs none. " +
						"Each operation names the verb that a token with limits must have. Answers to a token that ends have the header `" + api.TokenEndsHeader + "`, a time (RFC 3339)."},
				},
			},
			Security: []map[string][]string{{"token": {}}},
		},
		OpenAPIPath:  "/openapi",
		Formats:      huma.DefaultFormats,
		Transformers: []huma.Transformer{translate},

		DefaultFormat: "application/json",
	}
}

// The schemas of types that Go's reflection would describe wrongly: quantities are written as text, words are few.
type (
	quantitySchema     struct{}
	stackSchema        struct{}
	clusterPhaseSchema struct{}
	memberPhaseSchema  struct{}
	nodePhaseSchema    struct{}
	jobPhaseSchema     struct{}
	roleSchema         struct{}
	verbSchema         struct{}
	durationSchema     struct{}
	groupNetworkSchema struct{}
	rateSchema         struct{}
	gpuSchema          struct{}
	diskSchema         struct{}
	dscpSchema         struct{}
	machinePhaseSchema struct{}
	powerKindSchema    struct{}
	powerStateSchema   struct{}
	powerActionSchema  struct{}
	firmwareSchema     struct{}
	bootStageSchema    struct{}
	bootPurposeSchema  struct{}
	holdActionSchema   struct{}
	cleanKindSchema    struct{}
	cleanStateSchema   struct{}
	buildPhaseSchema   struct{}
	kindSchema         struct{}
	changeTypeSchema   struct{}
)

func words[T ~string](all ...T) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString}
	for _, w := range all {
		s.Enum = append(s.Enum, string(w))
	}
	return s
}

func (quantitySchema) Schema(huma.Registry) *huma.Schema {
	none := 0.0
	return &huma.Schema{
		Description: "A number of bytes as a quantity; requests may also give a plain number.",
		AnyOf: []*huma.Schema{
			{Type: huma.TypeString, Pattern: api.BytesPattern, Examples: []any{"512MiB"}}, {Type: huma.TypeInteger, Format: "int64", Minimum: &none},
		},
	}
}

func (rateSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Pattern: api.RatePattern, Description: "A rate in bits per second.", Examples: []any{"200Mbit"}}
}

func (gpuSchema) Schema(huma.Registry) *huma.Schema {
	one, most := 1.0, float64(manifest.MaxDevices)
	return &huma.Schema{
		Description: "Whole GPUs of the member's own node: their number, or number and kind: words of the model's name, or the least memory of each. N:mig, N:mig:PROFILE and N:mig:SIZE are slices of GPUs. N:remote:SIZE is so much memory of each of N GPUs of any node.",
		AnyOf: []*huma.Schema{
			{Type: huma.TypeString, Pattern: api.GPUPattern, Examples: []any{"1:80GiB"}}, {Type: huma.TypeInteger, Minimum: &one, Maximum: &most},
		},
	}
}

func (diskSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Type: huma.TypeString, Pattern: api.DiskPattern, Description: "Disks of the member's whole machine: their number, the least size of each, and their kind.", Examples: []any{"2:500GB:nvme"},
	}
}

func (dscpSchema) Schema(huma.Registry) *huma.Schema {
	lowest, highest := 0.0, 63.0
	return &huma.Schema{
		Description: "A differentiated services code point (RFC 2474); requests may also give a name.",
		AnyOf: []*huma.Schema{
			{Type: huma.TypeInteger, Minimum: &lowest, Maximum: &highest}, {Type: huma.TypeString, Examples: []any{"EF", "AF11", "CS1"}},
		},
	}
}

func (groupNetworkSchema) Schema(r huma.Registry) *huma.Schema {
	name, groups := &huma.Schema{Type: huma.TypeString}, &huma.Schema{Type: huma.TypeArray, Items: &huma.Schema{Type: huma.TypeString}}
	text(1, len(api.ProjectNetwork(""))+manifest.MaxProjectName+len(".")+manifest.MaxNetworkName, manifest.NetworkPattern)(name)
	address := &huma.Schema{Type: huma.TypeString, Format: "ipv4"}
	distinct(list(0, manifest.MaxPortGroups, text(1, manifest.MaxSecurityGroupName, manifest.LabelPattern)))(groups)
	return &huma.Schema{
		Description: "A network: its name, or a mapping with its name, the fixed address of the group's only member, and the security groups and the quality of service of the ports.",
		AnyOf: []*huma.Schema{name, {
			Type: huma.TypeObject, Properties: map[string]*huma.Schema{
				"name": name, "address": address, "security_groups": groups, "max_rate": rateSchema{}.Schema(r), "min_rate": rateSchema{}.Schema(r),
				"dscp": dscpSchema{}.Schema(r),
			}, Required: []string{"name"},
			AdditionalProperties: false,
		}},
	}
}

func (stackSchema) Schema(huma.Registry) *huma.Schema {
	return words(api.StackMetal, api.StackVM, api.StackContainer)
}

func (clusterPhaseSchema) Schema(huma.Registry) *huma.Schema {
	return words(api.ClusterPending, api.ClusterQueued, api.ClusterRefused, api.ClusterStarting, api.ClusterReady, api.ClusterScaling,
		api.ClusterDegraded, api.ClusterPausing, api.ClusterPaused, api.ClusterResuming, api.ClusterSnapshotting, api.ClusterSaving, api.ClusterSaved,
		api.ClusterRestoring, api.ClusterFailed, api.ClusterDeleting)
}

func (memberPhaseSchema) Schema(huma.Registry) *huma.Schema {
	return words(api.MemberAssigned, api.MemberPreparing, api.MemberStarting, api.MemberReady, api.MemberUnhealthy, api.MemberPaused, api.MemberSaved,
		api.MemberFailed, api.MemberLost, api.MemberWaiting, api.MemberSpare, api.MemberUnknown, api.MemberReleasing)
}

func (nodePhaseSchema) Schema(huma.Registry) *huma.Schema {
	of := func(p api.MachinePhase) api.NodePhase { return api.NodePhase(p) }
	return words(api.NodeReady, api.NodeUnknown, api.NodeDown, of(api.MachineEnrolled), of(api.MachineInspecting), of(api.MachineCleaning), of(api.MachineOff),
		of(api.MachineWarm), of(api.MachineBooting), of(api.MachineStopping), of(api.MachineFailed), of(api.MachineRemoving))
}

func (jobPhaseSchema) Schema(huma.Registry) *huma.Schema {
	return words(api.JobPending, api.JobRunning, api.JobSucceeded, api.JobFailed, api.JobCancelled, api.JobLost)
}

func (roleSchema) Schema(huma.Registry) *huma.Schema {
	return words(api.RoleAdmin, api.RoleMember, api.RoleViewer)
}

func (verbSchema) Schema(huma.Registry) *huma.Schema { return words(api.Verbs()...) }

func (machinePhaseSchema) Schema(huma.Registry) *huma.Schema {
	return words(api.MachineEnrolled, api.MachineInspecting, api.MachineCleaning, api.MachineOff, api.MachineWarm, api.MachineBooting, api.MachineReady,
		api.MachineStopping, api.MachineFailed, api.MachineRemoving)
}

func (powerKindSchema) Schema(huma.Registry) *huma.Schema {
	return words(api.PowerRedfish, api.PowerIPMI, api.PowerWakeOnLAN, api.PowerManual)
}

func (powerStateSchema) Schema(huma.Registry) *huma.Schema {
	return words(api.PowerOn, api.PowerOff, api.PowerUnknown)
}

func (powerActionSchema) Schema(huma.Registry) *huma.Schema {
	return words("", api.PowerActionOn, api.PowerActionOff, api.PowerActionCycle)
}

func (firmwareSchema) Schema(huma.Registry) *huma.Schema {
	return words("", api.FirmwareBIOS, api.FirmwareUEFI)
}

func (bootStageSchema) Schema(huma.Registry) *huma.Schema { return words(api.BootStages()...) }

func (bootPurposeSchema) Schema(huma.Registry) *huma.Schema {
	return words(api.BootEnroll, api.BootInspect, api.BootEnvironment, api.BootMember, api.BootClean)
}

func (holdActionSchema) Schema(huma.Registry) *huma.Schema {
	return words("", api.HoldQuarantine, api.HoldRelease)
}

func (cleanKindSchema) Schema(huma.Registry) *huma.Schema {
	return words(api.CleanDisk, api.CleanController, api.CleanFirmware, api.CleanTPM, api.CleanMemory)
}

func (cleanStateSchema) Schema(huma.Registry) *huma.Schema {
	return words(api.CleanPlanned, api.CleanRunning, api.CleanDone, api.CleanSkipped, api.CleanFailed)
}

func (buildPhaseSchema) Schema(huma.Registry) *huma.Schema {
	return words(api.BuildPending, api.BuildRunning, api.BuildSucceeded, api.BuildFailed, api.BuildCancelled)
}

func (kindSchema) Schema(huma.Registry) *huma.Schema { return words(api.Kinds()...) }

func (changeTypeSchema) Schema(huma.Registry) *huma.Schema {
	return words(api.ChangePut, api.ChangeDelete)
}

func (durationSchema) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{
		Type: huma.TypeString, Pattern: api.DurationPattern, Description: "A time span with its units: days, hours, minutes, seconds.",
		Examples: []any{"1d12h"},
	}
}

func schemaAliases() map[reflect.Type]reflect.Type {
	return map[reflect.Type]reflect.Type{
		reflect.TypeFor[api.Bytes]():        reflect.TypeFor[quantitySchema](),
		reflect.TypeFor[api.Rate]():         reflect.TypeFor[rateSchema](),
		reflect.TypeFor[api.GPURequest]():   reflect.TypeFor[gpuSchema](),
		reflect.TypeFor[api.DiskRequest]():  reflect.TypeFor[diskSchema](),
		reflect.TypeFor[api.DSCP]():         reflect.TypeFor[dscpSchema](),
		reflect.TypeFor[api.Stack]():        reflect.TypeFor[stackSchema](),
		reflect.TypeFor[api.ClusterPhase](): reflect.TypeFor[clusterPhaseSchema](),
		reflect.TypeFor[api.MemberPhase]():  reflect.TypeFor[memberPhaseSchema](),
		reflect.TypeFor[api.NodePhase]():    reflect.TypeFor[nodePhaseSchema](),
		reflect.TypeFor[api.JobPhase]():     reflect.TypeFor[jobPhaseSchema](),
		reflect.TypeFor[api.Role]():         reflect.TypeFor[roleSchema](),
		reflect.TypeFor[api.Verb]():         reflect.TypeFor[verbSchema](),
		reflect.TypeFor[api.GroupNetwork](): reflect.TypeFor[groupNetworkSchema](),
		reflect.TypeFor[api.Duration]():     reflect.TypeFor[durationSchema](),
		reflect.TypeFor[api.MachinePhase](): reflect.TypeFor[machinePhaseSchema](),
		reflect.TypeFor[api.PowerKind]():    reflect.TypeFor[powerKindSchema](),
		reflect.TypeFor[api.PowerState]():   reflect.TypeFor[powerStateSchema](),
		reflect.TypeFor[api.PowerAction]():  reflect.TypeFor[powerActionSchema](),
		reflect.TypeFor[api.Firmware]():     reflect.TypeFor[firmwareSchema](),
		reflect.TypeFor[api.BootStage]():    reflect.TypeFor[bootStageSchema](),
		reflect.TypeFor[api.BootPurpose]():  reflect.TypeFor[bootPurposeSchema](),
		reflect.TypeFor[api.HoldAction]():   reflect.TypeFor[holdActionSchema](),
		reflect.TypeFor[api.CleanKind]():    reflect.TypeFor[cleanKindSchema](),
		reflect.TypeFor[api.CleanState]():   reflect.TypeFor[cleanStateSchema](),
		reflect.TypeFor[api.BuildPhase]():   reflect.TypeFor[buildPhaseSchema](),
		reflect.TypeFor[api.Kind]():         reflect.TypeFor[kindSchema](),
		reflect.TypeFor[api.ChangeType]():   reflect.TypeFor[changeTypeSchema](),
	}
}

func splitPattern(pattern string) (method, path string) {
	method, path, _ = strings.Cut(pattern, " ")
	return method, path
}

// tagOf groups the operations of one resource.
func tagOf(path string) string {
	parts := strings.Split(strings.TrimPrefix(path, "/v1/"), "/")
	if strings.Contains(path, "/jobs") {
		return "jobs"
	}
	switch parts[0] {
	case "watch":
		return "clusters"
	case "changes", "metrics":
		return "server"
	case "power", "clean", "candidates", "enroll-tokens":
		return "nodes"
	case "builds", "recipes":
		return "environments"
	}
	if strings.HasPrefix(path, "/v1/") && parts[0] != "version" {
		return parts[0]
	}
	return "server"
}

// documentBody describes the body of an operation whose handler reads it itself: as JSON and as YAML, by the schema of what it reads.
func (s *Server) documentBody(op *huma.Operation) {
	request := requests()[op.OperationID]
	if request == nil {
		return
	}
	types := []string{"application/json", "application/yaml"}
	if op.Method == http.MethodPatch {
		types = []string{mergePatchType, "application/json"}
	}
	schema := s.schema(request)
	op.RequestBody.Content = map[string]*huma.MediaType{}
	for _, t := range types {
		op.RequestBody.Content[t] = &huma.MediaType{Schema: schema}
	}
	op.RequestBody.Required = op.OperationID != "drain-node" // a drain needs no reason
}

// requests are the types of the bodies that handlers read themselves, by operation.
func requests() map[string]reflect.Type {
	return map[string]reflect.Type{
		"create-cluster":              reflect.TypeFor[api.ClusterRequest](),
		"apply-cluster":               reflect.TypeFor[api.ClusterRequest](),
		"create-job":                  reflect.TypeFor[api.JobRequest](),
		"scale-cluster":               reflect.TypeFor[api.ScaleRequest](),
		"migrate-cluster":             reflect.TypeFor[api.MigrateRequest](),
		"reboot-cluster":              reflect.TypeFor[api.RebootRequest](),
		"resize-cluster":              reflect.TypeFor[api.ResizeRequest](),
		"extend-cluster":              reflect.TypeFor[api.ExtendRequest](),
		"label-cluster":               reflect.TypeFor[api.LabelsRequest](),
		"certify-key":                 reflect.TypeFor[api.CertificateRequest](),
		"drain-node":                  reflect.TypeFor[api.DrainRequest](),
		"announce-maintenance":        reflect.TypeFor[api.MaintenanceRequest](),
		"create-network":              reflect.TypeFor[api.NetworkRequest](),
		"change-network-records":      reflect.TypeFor[api.NetworkRecords](),
		"allocate-address":            reflect.TypeFor[api.AddressRequest](),
		"assign-address":              reflect.TypeFor[api.AddressAssignment](),
		"create-dataset":              reflect.TypeFor[api.DatasetRequest](),
		"replicate-dataset":           reflect.TypeFor[api.DatasetNodes](),
		"evict-dataset":               reflect.TypeFor[api.DatasetNodes](),
		"create-security-group":       reflect.TypeFor[api.SecurityGroupRequest](),
		"create-volume":               reflect.TypeFor[api.VolumeRequest](),
		"attach-volume":               reflect.TypeFor[api.VolumeAttachment](),
		"change-volume":               reflect.TypeFor[api.VolumeChange](),
		"create-volume-snapshot":      reflect.TypeFor[api.VolumeSnapshotRequest](),
		"change-security-group-rules": reflect.TypeFor[api.SecurityGroupRules](),
		"create-project":              reflect.TypeFor[api.ProjectRequest](),
		"update-project":              reflect.TypeFor[api.ProjectUpdate](),
		"patch-project":               reflect.TypeFor[api.ProjectSettings](),
		"set-shape":                   reflect.TypeFor[api.ShapeSettings](),
		"create-token":                reflect.TypeFor[api.TokenRequest](),
		"enroll-node":                 reflect.TypeFor[api.EnrollRequest](),
		"update-machine":              reflect.TypeFor[api.EnrollRequest](),
		"patch-machine":               reflect.TypeFor[api.MachinePatch](),
		"power-node":                  reflect.TypeFor[api.NodePowerRequest](),
		"power-nodes":                 reflect.TypeFor[api.NodesPowerRequest](),
		"clean-nodes":                 reflect.TypeFor[api.NodesCleanRequest](),
		"hold-node":                   reflect.TypeFor[api.NodeHoldRequest](),
		"create-build":                reflect.TypeFor[api.BuildRequest](),

		"create-enroll-token": reflect.TypeFor[api.EnrollTokenRequest](),
	}
}

func (s *Server) schema(t reflect.Type) *huma.Schema {
	return s.api.OpenAPI().Components.Schemas.Schema(t, true, t.Name())
}

// methods are the operations of a path, by method.
func methods(item *huma.PathItem) map[string]*huma.Operation {
	all := map[string]*huma.Operation{}
	for method, op := range map[string]*huma.Operation{
		http.MethodGet: item.Get, http.MethodPost: item.Post, http.MethodPut: item.Put, http.MethodPatch: item.Patch,
		http.MethodDelete: item.Delete,
	} {
		if op != nil {
			all[method] = op
		}
	}
	return all
}

// security is what a request needs to be let in: a token, and the verb that a limited one must have (as a role, OpenAPI 3.1, section 4.8.30).
func (s *Server) security(pattern string) []map[string][]string {
	if s.access[pattern] == AccessOpen {
		return []map[string][]string{}
	}
	return []map[string][]string{{"token": {string(s.access[pattern])}}}
}

// responses are the successful answer as huma documented it, and the problems the operation can answer with.
func (s *Server) responses(op *huma.Operation, status int, codes []Code) map[string]*huma.Response {
	out := map[string]*huma.Response{}
	if ok := op.Responses[strconv.Itoa(status)]; ok != nil {
		out[strconv.Itoa(status)] = ok
	}
	if !open(op.Path) {
		codes = append([]Code{codeUnauthorized, codeForbidden}, codes...)
	}
	if !open(op.Path) {
		codes = append(codes, codeParameter) // an unknown one, where there are none
	}
	codes = append(codes, codeInternal, codeUnavailable)
	for _, c := range codes {
		key := strconv.Itoa(c.Status)
		if r := out[key]; r != nil {
			r.Description += ", `" + c.Code + "`"
			continue
		}
		out[key] = &huma.Response{
			Description: "`" + c.Code + "`",
			Content:     map[string]*huma.MediaType{problemType: {Schema: s.schema(reflect.TypeFor[api.Problem]())}},
		}
	}
	return out
}
