// module.cc - the Python module byteps._native: abi/byteps.h with Python's values, and what only C can do at exit.
//
// What a user calls is in the package byteps; the types and signatures are in byteps/_native.pyi.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "frameworks/common/library.h"
#include "frameworks/python/native/array.h"
#include "frameworks/python/native/buffer.h"
#include "frameworks/python/native/completions.h"
#include "frameworks/python/native/exit_status.h"
#include "frameworks/python/native/prepared_push_pull.h"
#include "frameworks/python/native/process_set.h"
#include "frameworks/python/native/request.h"
#include "frameworks/python/native/result.h"
#include "frameworks/python/native/session.h"
#include "frameworks/python/native/status_error.h"

namespace byteps::python {

namespace py = pybind11;

namespace {

using Text = std::optional<std::string>;

std::shared_ptr<Session> Open(std::shared_ptr<const Library> library, Text coordinator, Text job, Text name, Text token,
                              Text host, Text transport, Text scheduler, std::optional<std::vector<int32_t>> place,
                              int32_t log_level, std::optional<double> timeout) {
  OpenOptions options;
  options.coordinator = std::move(coordinator);
  options.job = std::move(job);
  options.name = std::move(name);
  options.token = std::move(token);
  options.host = std::move(host);
  options.transport = std::move(transport);
  options.scheduler = std::move(scheduler);
  options.place = std::move(place);
  options.log_level = log_level;
  options.timeout = timeout;
  return Session::Open(std::move(library), std::move(options));
}

// The usual case, None, is not looked up among the types: that takes a tenth of a push_pull.
Notice NoticeOf(const py::object& completions, uint64_t token) {
  if (completions.is_none()) return {};
  return {completions.cast<std::shared_ptr<Completions>>(), token};
}

CollectiveSpec MakeSpec(int32_t kind, Text name, uint32_t dtype, std::vector<int64_t> shape, uintptr_t input,
                        uintptr_t output, uint64_t output_bytes, int32_t op, std::vector<int64_t> splits, int32_t root,
                        int32_t peer, int64_t tag, std::optional<std::pair<double, double>> scale,
                        std::shared_ptr<ProcessSet> set, int64_t priority, std::optional<double> timeout,
                        const OptionalPlace& place) {
  return {kind,
          std::move(name),
          dtype,
          std::move(shape),
          input,
          output,
          output_bytes,
          op,
          std::move(splits),
          root,
          peer,
          tag,
          scale,
          std::move(set),
          priority,
          timeout,
          place};
}

void AddConstants(py::module_& module) {
  module.attr("ABI_MAJOR") = BPS_ABI_MAJOR;
  module.attr("ABI_MINOR") = BPS_ABI_MINOR;

  module.attr("INT8") = BPS_INT8;
  module.attr("INT16") = BPS_INT16;
  module.attr("INT32") = BPS_INT32;
  module.attr("INT64") = BPS_INT64;
  module.attr("UINT8") = BPS_UINT8;
  module.attr("FLOAT16") = BPS_FLOAT16;
  module.attr("FLOAT32") = BPS_FLOAT32;
  module.attr("FLOAT64") = BPS_FLOAT64;
  module.attr("BFLOAT16") = BPS_BFLOAT16;
  module.attr("COMPLEX64") = BPS_COMPLEX64;
  module.attr("COMPLEX128") = BPS_COMPLEX128;
  module.attr("BOOL") = BPS_BOOL;

  module.attr("SUM") = BPS_SUM;
  module.attr("AVERAGE") = BPS_AVERAGE;
  module.attr("MIN") = BPS_MIN;
  module.attr("MAX") = BPS_MAX;
  module.attr("PRODUCT") = BPS_PRODUCT;
  module.attr("BIT_AND") = BPS_BIT_AND;
  module.attr("BIT_OR") = BPS_BIT_OR;
  module.attr("BIT_XOR") = BPS_BIT_XOR;
  module.attr("ADASUM") = BPS_ADASUM;

  module.attr("ALL_REDUCE") = BPS_ALL_REDUCE;
  module.attr("BROADCAST") = BPS_BROADCAST;
  module.attr("ALL_GATHER") = BPS_ALL_GATHER;
  module.attr("REDUCE_SCATTER") = BPS_REDUCE_SCATTER;
  module.attr("ALL_TO_ALL") = BPS_ALL_TO_ALL;
  module.attr("REDUCE") = BPS_REDUCE;
  module.attr("GATHER") = BPS_GATHER;
  module.attr("SCATTER") = BPS_SCATTER;
  module.attr("SEND") = BPS_SEND;
  module.attr("RECEIVE") = BPS_RECEIVE;
  module.attr("BARRIER") = BPS_BARRIER;

  module.attr("CPU") = BPS_CPU;
  module.attr("CUDA") = BPS_CUDA;
  module.attr("CUDA_HOST") = BPS_CUDA_HOST;
}

}  // namespace

PYBIND11_MODULE(_native, module) {
  RegisterStatusError();
  AddConstants(module);
  module.def("change_exit_status", &ChangeExitStatus);

  py::class_<Request, std::shared_ptr<Request>>(module, "Request")
      .def("wait", &Request::Wait, py::arg("timeout") = py::none())
      .def("wait_on_stream", &Request::WaitOnStream, py::arg("stream"), py::arg("timeout") = py::none())
      .def("test", &Request::Test)
      .def("is_enqueued", &Request::IsEnqueued)
      .def(
          "result",
          [](const std::shared_ptr<Request>& request, int32_t index) {
            return Result(request, request->Result(index));
          },
          py::arg("index") = 0)
      .def("cancel", &Request::Cancel)
      .def_property_readonly("state", &Request::State);

  module.def("wait_all", &Request::WaitAll, py::arg("requests"));

  py::class_<PreparedPushPull, std::shared_ptr<PreparedPushPull>>(module, "PreparedPushPull")
      .def("start", &PreparedPushPull::Start, py::arg("input"), py::arg("output"), py::arg("buffers"),
           py::arg("priority") = 0);

  py::class_<Result>(module, "Result", py::buffer_protocol())
      .def("__len__", &Result::bytes)
      .def_property_readonly("address", [](const Result& result) { return reinterpret_cast<uintptr_t>(result.data()); })
      .def_property_readonly("shape", &Result::shape)
      .def_property_readonly("splits", &Result::splits)
      .def_buffer([](Result& result) {
        static uint8_t nothing = 0;
        auto* data = static_cast<uint8_t*>(result.data());
        return py::buffer_info(data == nullptr ? &nothing : data, static_cast<py::ssize_t>(result.bytes()));
      });

  py::class_<ProcessSet, std::shared_ptr<ProcessSet>>(module, "ProcessSet").def("remove", &ProcessSet::Remove);

  py::class_<DevicePlace>(module, "DevicePlace")
      .def(py::init([](int32_t input_device, int32_t input_id, int32_t output_device, int32_t output_id,
                       uintptr_t stream, bool output_later) {
             return DevicePlace{input_device, input_id, output_device, output_id, stream, output_later};
           }),
           py::arg("input_device"), py::arg("input_id"), py::arg("output_device"), py::arg("output_id"),
           py::arg("stream"), py::arg("output_later"));

  py::class_<CollectiveSpec>(module, "Collective")
      .def(py::init(&MakeSpec), py::arg("kind"), py::arg("name") = py::none(), py::kw_only(),
           py::arg("dtype") = BPS_UINT8, py::arg("shape") = std::vector<int64_t>{}, py::arg("input") = 0,
           py::arg("output") = 0, py::arg("output_bytes") = 0, py::arg("op") = BPS_SUM,
           py::arg("splits") = std::vector<int64_t>{}, py::arg("root") = 0, py::arg("peer") = 0, py::arg("tag") = 0,
           py::arg("scale") = py::none(), py::arg("process_set") = py::none(), py::arg("priority") = 0,
           py::arg("timeout") = py::none(), py::arg("place") = py::none());

  py::class_<Buffer, std::shared_ptr<Buffer>>(module, "Buffer", py::buffer_protocol())
      .def("__len__", &Buffer::size)
      .def_buffer([](Buffer& buffer) {
        return py::buffer_info(static_cast<uint8_t*>(buffer.data()), static_cast<py::ssize_t>(buffer.size()));
      });

  py::class_<Array, std::shared_ptr<Array>>(module, "Array")
      .def(py::init<const py::object&, bool>(), py::arg("object"), py::arg("writable"))
      .def_property_readonly("address", &Array::address)
      .def_property_readonly("dtype", &Array::dtype)
      .def_property_readonly("shape", [](const Array& array) { return py::tuple(py::cast(array.shape())); });

  py::class_<Completions, std::shared_ptr<Completions>>(module, "Completions")
      .def(py::init<>())
      .def("fileno", &Completions::descriptor)
      .def("take", &Completions::Take);

  py::class_<Session, std::shared_ptr<Session>>(module, "Session")
      .def("info", &Session::Info)
      .def_property_readonly("address", &Session::Address)
      .def(
          "declare",
          [](Session& session, std::string name, uint32_t dtype, std::vector<int64_t> shape) {
            session.Declare({std::move(name), dtype, std::move(shape)});
          },
          py::arg("name"), py::arg("dtype"), py::arg("shape"))
      .def(
          "push_pull",
          [](Session& session, std::string name, uint32_t dtype, std::vector<int64_t> shape, uintptr_t input,
             uintptr_t output, int32_t op, py::object buffers, int64_t priority, std::optional<double> timeout,
             const py::object& completions, uint64_t token, const OptionalPlace& place, bool asynchronous) {
            return session.PushPull({std::move(name), dtype, std::move(shape), asynchronous}, input, output, op,
                                    priority, timeout, std::move(buffers), NoticeOf(completions, token), place);
          },
          py::arg("name"), py::arg("dtype"), py::arg("shape"), py::arg("input"), py::arg("output"), py::arg("op"),
          py::arg("buffers"), py::arg("priority") = 0, py::arg("timeout") = py::none(),
          py::arg("completions") = py::none(), py::arg("token") = 0, py::arg("place") = py::none(),
          py::arg("asynchronous") = false)
      .def(
          "prepare_push_pull",
          [](Session& session, std::string name, uint32_t dtype, std::vector<int64_t> shape, int32_t op) {
            return session.Prepare({std::move(name), dtype, std::move(shape)}, op);
          },
          py::arg("name"), py::arg("dtype"), py::arg("shape"), py::arg("op"))
      .def(
          "broadcast",
          [](Session& session, std::string name, uint32_t dtype, std::vector<int64_t> shape, uintptr_t input,
             uintptr_t output, int32_t root, py::object buffers, int64_t priority, std::optional<double> timeout,
             const py::object& completions, uint64_t token, const OptionalPlace& place) {
            return session.Broadcast({std::move(name), dtype, std::move(shape)}, input, output, root, priority, timeout,
                                     std::move(buffers), NoticeOf(completions, token), place);
          },
          py::arg("name"), py::arg("dtype"), py::arg("shape"), py::arg("input"), py::arg("output"), py::arg("root"),
          py::arg("buffers"), py::arg("priority") = 0, py::arg("timeout") = py::none(),
          py::arg("completions") = py::none(), py::arg("token") = 0, py::arg("place") = py::none())
      .def(
          "collective",
          [](Session& session, const CollectiveSpec& operation, py::object buffers,
             std::shared_ptr<Completions> completions, uint64_t token) {
            return session.Collective(operation, std::move(buffers), Notice{std::move(completions), token});
          },
          py::arg("operation"), py::arg("buffers"), py::arg("completions") = std::shared_ptr<Completions>(),
          py::arg("token") = 0)
      .def(
          "sparse_all_reduce",
          [](Session& session, std::string name, uint32_t dtype, std::vector<int64_t> shape, uintptr_t indices,
             uintptr_t values, int64_t rows, int32_t op, std::shared_ptr<ProcessSet> set, int64_t priority,
             std::optional<double> timeout) {
            return session.SparseAllReduce({std::move(name), dtype, std::move(shape), indices, values, rows, op,
                                            std::move(set), priority, timeout});
          },
          py::arg("name"), py::arg("dtype"), py::arg("shape"), py::arg("indices"), py::arg("values"), py::arg("rows"),
          py::arg("op") = BPS_SUM, py::arg("process_set") = std::shared_ptr<ProcessSet>(), py::arg("priority") = 0,
          py::arg("timeout") = py::none())
      .def(
          "give_up_push_pull",
          [](Session& session, std::string name, uint32_t dtype, std::vector<int64_t> shape, int32_t op,
             const std::string& reason) {
            return session.GiveUp(TensorSpec{std::move(name), dtype, std::move(shape)}, op, reason);
          },
          py::arg("name"), py::arg("dtype"), py::arg("shape"), py::arg("op"), py::arg("reason"))
      .def(
          "give_up_collective",
          [](Session& session, const CollectiveSpec& operation, const std::string& reason) {
            return session.GiveUp(operation, reason);
          },
          py::arg("operation"), py::arg("reason"))
      .def(
          "give_up_sparse_all_reduce",
          [](Session& session, std::string name, uint32_t dtype, std::vector<int64_t> shape, int32_t op,
             std::shared_ptr<ProcessSet> set, const std::string& reason) {
            SparseSpec spec{std::move(name), dtype, std::move(shape)};
            spec.op = op;
            spec.set = std::move(set);
            return session.GiveUp(spec, reason);
          },
          py::arg("name"), py::arg("dtype"), py::arg("shape"), py::arg("op"), py::arg("process_set"), py::arg("reason"))
      .def("group", &Session::Group, py::arg("operations"), py::arg("buffers"))
      .def("process_set", &Session::NewProcessSet, py::arg("ranks"), py::arg("name") = "")
      .def("buffer", &Session::NewBuffer, py::arg("size"), py::arg("pinned") = py::none())
      .def("barrier", &Session::Barrier, py::arg("name") = py::none(), py::arg("timeout") = py::none())
      .def("join", &Session::Join, py::arg("timeout") = py::none())
      .def("start_timeline", &Session::StartTimeline, py::arg("path"), py::arg("mark_steps") = false)
      .def("stop_timeline", &Session::StopTimeline)
      .def("mark", &Session::Mark, py::arg("name"), py::arg("kind"))
      .def("shutdown", &Session::Shutdown, py::arg("timeout") = py::none())
      .def("close", &Session::Close);

  py::class_<Library, std::shared_ptr<Library>>(module, "Library")
      .def_property_readonly("path", [](const Library& library) { return library.path; })
      .def_property_readonly("version", [](const Library& library) { return library.bps_version_string(); })
      .def_property_readonly("abi_version",
                             [](const Library& library) {
                               int32_t major = 0;
                               int32_t minor = 0;
                               library.bps_version(&major, &minor);
                               return std::make_pair(major, minor);
                             })
      .def("open", &Open, py::kw_only(), py::arg("coordinator") = py::none(), py::arg("job") = py::none(),
           py::arg("name") = py::none(), py::arg("token") = py::none(), py::arg("host") = py::none(),
           py::arg("transport") = py::none(), py::arg("scheduler") = py::none(), py::arg("place") = py::none(),
           py::arg("log_level") = 0, py::arg("timeout") = py::none());

  module.def("load", &Library::Load, py::arg("path"));
}

}  // namespace byteps::python
