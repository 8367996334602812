package apiserver

import (
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/floating"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// property changes the schema of one property.
type property func(*huma.Schema)

// bound adds to the document's schemas what Go's types don't say: forms and limits of fields, by the constants that requests are checked with.
// Each value that a schema excludes is refused; what no schema can say, such as sums and unique names, is refused with 422.
func (s *Server) bound() {
	schemas := s.api.OpenAPI().Components.Schemas.Map()
	for name, properties := range bounds() {
		for field, change := range properties {
			change(schemas[name].Properties[field])
		}
	}
	for name, schema := range schemas {
		listsAreNeverNull(schema, s.isRequest(name))
	}
	for _, id := range []string{"patch-project", "patch-machine"} {
		name := requests()[id].Name()
		schemas[name] = mergePatch(schemas, schemas[name])
	}
	s.boundParameters()
}

// bounds are the forms and limits of fields, by schema and property.
func bounds() map[string]map[string]property {
	label := text(1, manifest.MaxLabel, manifest.LabelPattern)
	clusterName := text(1, manifest.MaxClusterName, manifest.LabelPattern)
	projectName := text(1, manifest.MaxProjectName, manifest.LabelPattern)
	labels := mapping(manifest.MaxLabels, manifest.LabelKeyPattern, text(0, manifest.MaxLabelValue, manifest.LabelValuePattern))
	command := list(1, manifest.MaxArgs, text(0, manifest.MaxBytes, noZero))
	size, cores := between(1, manifest.MaxMembers), between(1, manifest.MaxCores)
	checks := list(0, manifest.MaxChecks, nil)
	spares := between(0, manifest.MaxMembers)
	networks := distinct(list(0, manifest.MaxGroupNetworks, nil))
	rules := distinct(list(0, manifest.MaxGroupRules, text(1, manifest.MaxRule, "")))
	quota := between(0, maxQuota)
	shares, description := between(1, maxShares), text(0, maxDescription, "")
	password := text(0, manifest.MaxPassword, "")
	return map[string]map[string]property{
		"ClusterRequest": {
			"name": clusterName, "project": projectName, "labels": labels, "size": size, "shape": label, "cores": cores, "environment": label,
			"node_selector": labels, "spares": spares, "networks": networks, "checks": checks, "user_data": text(0, manifest.MaxUserData, ""),
			"priority": between(-manifest.MaxPriority, manifest.MaxPriority),
			"groups":   list(1, manifest.MaxGroups, nil),
		},
		"Group": {
			"name": label, "size": size, "shape": label, "cores": cores, "environment": label, "node_selector": labels, "spares": spares,
			"networks": networks, "checks": checks, "user_data": text(0, manifest.MaxUserData, ""),
		},
		"NetworkRequest": {"name": text(1, manifest.MaxNetworkName, manifest.LabelPattern), "project": projectName, "prefix": text(9, 18, `^[0-9.]+/[0-9]+$`)},
		"SecurityGroupRequest": {
			"name": text(1, manifest.MaxSecurityGroupName, manifest.LabelPattern), "project": projectName, "rules": rules,
		},
		"DatasetRequest": {"name": label, "project": projectName, "files": list(1, api.MaxDatasetFiles, nil)},
		"DatasetNodes":   {"nodes": distinct(list(0, 1000, label))},
		"VolumeRequest": {
			"name": text(1, manifest.MaxVolumeName, manifest.LabelPattern), "project": projectName, "files": between(0, manifest.MaxVolumeFiles),
			"access": enum(manifest.VolumeAccesses()), "node": label, "from": text(1, manifest.MaxVolumeFrom, volumeFromPattern),
		},
		"VolumeChange":          {"files": between(manifest.MinVolumeFiles, manifest.MaxVolumeFiles), "access": enum(manifest.VolumeAccesses())},
		"VolumeSnapshotRequest": {"name": label},
		"AddressRequest":        {"address": text(7, 15, addressPattern), "project": projectName},
		"AddressAssignment": {
			"cluster": text(1, maxClusterPath, clusterPath), "member": label, "ports": list(0, floating.MaxPorts, text(5, 15, `^(tcp|udp)/[0-9]{1,5}(=[0-9]{1,5})?$`)),
		},
		"NetworkRecord": {
			"name": text(1, manifest.MaxRecordName, manifest.RecordNamePattern), "addresses": list(1, manifest.MaxRecordAddresses, text(2, 39, "^[0-9a-fA-F:.]+$")),
		},
		"NetworkRecords": {
			"set": list(0, manifest.MaxRecords, nil), "remove": list(0, manifest.MaxRecords, text(1, manifest.MaxRecordName, manifest.RecordNamePattern)),
		},
		"SecurityGroupRules": {"rules": rules, "add": rules, "remove": rules},
		"Check":              {"name": label, "command": command, "failures": between(1, manifest.MaxCheckFailures)},
		"ScaleRequest":       {"size": size},
		"LabelsRequest":      {"labels": labels},
		"CertificateRequest": {"public_key": text(1, maxKey, "")},
		"JobRequest": {
			"command": command, "ranks": between(0, manifest.MaxRanks), "directory": text(0, manifest.MaxBytes, `^(/[^\u0000]*)?$`),
			"env":            mapping(0, manifest.VariablePattern, text(0, manifest.MaxBytes, noZero)),
			"failure_signal": enum(manifest.FailureSignals()),
		},
		"DrainRequest":       {"reason": text(0, maxReason, "")},
		"MaintenanceRequest": {"reason": text(1, maxReason, "")},
		"ProjectRequest":     {"name": projectName, "description": description, "shares": shares},
		"ProjectUpdate":      {"name": projectName, "description": description, "shares": shares},
		"ProjectSettings":    {"description": description, "shares": shares},
		"ShapeSettings":      {"description": text(0, manifest.MaxShapeDescription, ""), "cores": cores},
		"Quota":              {"cores": quota, "members": quota, "clusters": quota, "addresses": quota, "energy_joules": between(0, maxEnergyQuota), "devices": mapping(maxDeviceQuotas, manifest.CounterPattern, between(0, maxDeviceQuota))},
		"TokenRequest": {
			"user": text(1, maxUser, `^\S+$`), "project": projectName, "verbs": list(0, len(api.Verbs()), nil),
			"clusters": list(0, tenancy.MaxPatterns, text(1, manifest.MaxClusterName, tenancy.PatternPattern)),
		},
		"NodesPowerRequest": {"selector": labels},
		"EnrollRequest":     {"name": label, "password": password},
		"MachinePatch":      {"password": password},
		"MachineSpec":       {"macs": list(1, manifest.MaxMACs, text(14, 17, macPattern)), "labels": labels},
		"EnrollTokenRequest": {
			"prefix": text(1, manifest.MaxPrefix, `^[a-z0-9][a-z0-9-]*$`), "uses": between(1, manifest.MaxUses), "password": password,
		},
	}
}

const (
	// addressPattern is an IPv4 address, and clusterPath the name of a cluster, of another project PROJECT.NAME.
	clusterPath    = `^([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)?[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	maxClusterPath = manifest.MaxProjectName + len(".") + manifest.MaxClusterName
	// volumeFromPattern is VOLUME or VOLUME@SNAPSHOT.
	volumeFromPattern = `^[a-z0-9]([a-z0-9-]*[a-z0-9])?(@[a-z0-9]([a-z0-9-]*[a-z0-9])?)?$`
	addressPattern    = `^[0-9]{1,3}([.][0-9]{1,3}){3}$`
	// noZero is text without zero bytes, which neither arguments nor variables hold.
	noZero = `^[^\u0000]*$`
	// macPattern is a MAC address as people write it; answers have the first form.
	macPattern = `^(([0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}|([0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4})$`
)

// Names of networks: a cluster's, with the name that the network has within it, a project's, or a UID.
const (
	maxNetworkPath = len("project/") + manifest.MaxProjectName + len(".") + manifest.MaxClusterName + len(":") + manifest.MaxNetworkName
	networkPattern = `^(project/)?([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)?[a-z0-9]([a-z0-9-]*[a-z0-9])?(:[a-z0-9]([a-z0-9-]*[a-z0-9])?)?$`
)

// text bounds a text's length and form; 0 and "" leave one open.
func text(least, most int, pattern string) property {
	return func(s *huma.Schema) {
		s.Pattern = pattern
		if least > 0 {
			s.MinLength = &least
		}
		s.MaxLength = &most
	}
}

func between(least, most int) property {
	low, high := float64(least), float64(most)
	return func(s *huma.Schema) { s.Minimum, s.Maximum = &low, &high }
}

func enum(words []string) property {
	return func(s *huma.Schema) {
		for _, w := range words {
			s.Enum = append(s.Enum, w)
		}
	}
}

// list bounds a list's length, and its items where they are no schema of their own.
func list(least, most int, item property) property {
	return func(s *huma.Schema) {
		if least > 0 {
			s.MinItems = &least
		}
		s.MaxItems = &most
		if item != nil {
			item(s.Items)
		}
	}
}

// distinct bounds a list whose items all differ.
func distinct(of property) property {
	return func(s *huma.Schema) {
		of(s)
		s.UniqueItems = true
	}
}

// mapping bounds a mapping's keys and values; 0 leaves their number open.
func mapping(most int, keys string, value property) property {
	return func(s *huma.Schema) {
		if most > 0 {
			s.MaxProperties = &most
		}
		s.Extensions = map[string]any{"propertyNames": map[string]any{"pattern": keys}}
		if values, ok := s.AdditionalProperties.(*huma.Schema); ok {
			value(values)
		}
	}
}

// isRequest reports whether a schema is part of a request's body.
func (s *Server) isRequest(name string) bool {
	registry, seen := s.api.OpenAPI().Components.Schemas.Map(), map[string]bool{}
	var visit func(schema *huma.Schema)
	visit = func(schema *huma.Schema) {
		if schema == nil {
			return
		}
		if ref := strings.TrimPrefix(schema.Ref, schemaPrefix); ref != "" && !seen[ref] {
			seen[ref] = true
			visit(registry[ref])
		}
		visit(schema.Items)
		for _, p := range schema.Properties {
			visit(p)
		}
	}
	for _, t := range requests() {
		visit(&huma.Schema{Ref: schemaPrefix + t.Name()})
	}
	return seen[name]
}

// listsAreNeverNull takes null from the lists of a schema that can't be null: requests refuse it, and answers omit an empty optional list.
func listsAreNeverNull(schema *huma.Schema, request bool) {
	required := map[string]bool{}
	for _, name := range schema.Required {
		required[name] = true
	}
	for name, p := range schema.Properties {
		if p.Type == huma.TypeArray && (request || !required[name] || name == "items") {
			p.Nullable = false
		}
	}
}

// mergePatch is the schema of a merge patch of what has a schema (RFC 7396): nothing is required, and null resets a field.
func mergePatch(all map[string]*huma.Schema, of *huma.Schema) *huma.Schema {
	if of.Ref != "" {
		of = all[strings.TrimPrefix(of.Ref, schemaPrefix)]
	}
	patch := *of
	patch.Required, patch.Properties = nil, map[string]*huma.Schema{}
	for name, p := range of.Properties {
		field := p
		switch {
		case p.Ref != "" || p.Type == huma.TypeObject && p.Properties != nil:
			field = mergePatch(all, p)
		case p.Type == huma.TypeObject:
			copied := *p
			field = &copied
			if values, ok := p.AdditionalProperties.(*huma.Schema); ok {
				field.AdditionalProperties = orNull(values)
			}
		}
		patch.Properties[name] = orNull(field)
	}
	return &patch
}

// orNull is a schema that allows null as well.
func orNull(of *huma.Schema) *huma.Schema {
	schema := *of
	switch {
	case len(schema.AnyOf) > 0:
		schema.AnyOf = append(append([]*huma.Schema{}, schema.AnyOf...), &huma.Schema{Type: "null"})
	default:
		schema.Nullable = true
	}
	if len(schema.Enum) > 0 {
		schema.Enum = append(append([]any{}, schema.Enum...), nil)
	}
	return &schema
}

// boundParameters adds the forms of names and IDs in paths. A path of another form leads nowhere: 404.
func (s *Server) boundParameters() {
	for path, item := range s.api.OpenAPI().Paths {
		for _, op := range methods(item) {
			for _, p := range op.Parameters {
				if p.In != "path" {
					continue
				}
				form := text(1, manifest.MaxLabel, manifest.LabelPattern)
				switch {
				case p.Name == "id":
					form = text(1, manifest.MaxLabel, `^[a-z0-9]+$`)
				case p.Name == "name" && strings.HasPrefix(path, "/v1/networks/"):
					form = text(1, maxNetworkPath, networkPattern)
				case p.Name == "name" && (strings.HasPrefix(path, "/v1/clusters/") || strings.HasPrefix(path, "/v1/security-groups/")):
					form = text(1, maxClusterPath, clusterPath)
				case p.Name == "address":
					form = text(7, 15, addressPattern)
				}
				bounded := *p.Schema
				form(&bounded)
				p.Schema = &bounded
			}
		}
	}
}
