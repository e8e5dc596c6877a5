"""Protobuf messages without generated code."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format


def message_classes(schema: str) -> dict[str, Any]:
    """The message classes of a file in protobuf's text form, by name. Fields are optional unless it says otherwise.

    They have their own descriptor pool, because TensorFlow may register the same names.
    """
    file = text_format.Parse(schema, descriptor_pb2.FileDescriptorProto())
    for owner in file.message_type:
        for field in [*owner.field, *(field for nested in owner.nested_type for field in nested.field)]:
            field.label = field.label or field.LABEL_OPTIONAL
            field.type = field.TYPE_MESSAGE if field.type_name else field.type
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindFileByName(file.name).message_types_by_name
    return {name: message_factory.GetMessageClass(message) for name, message in found.items()}
